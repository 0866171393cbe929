package baton.cli;

import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.classes;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noFields;
import static com.tngtech.archunit.library.Architectures.layeredArchitecture;
import static com.tngtech.archunit.library.dependencies.SlicesRuleDefinition.slices;
import static org.assertj.core.api.Assertions.assertThat;

import com.tngtech.archunit.base.DescribedPredicate;
import com.tngtech.archunit.core.domain.JavaClass;
import com.tngtech.archunit.core.domain.JavaClasses;
import com.tngtech.archunit.core.domain.JavaField;
import com.tngtech.archunit.core.domain.JavaModifier;
import com.tngtech.archunit.core.importer.ClassFileImporter;
import com.tngtech.archunit.core.importer.ImportOption;
import com.tngtech.archunit.lang.ArchCondition;
import com.tngtech.archunit.lang.ConditionEvents;
import com.tngtech.archunit.lang.SimpleConditionEvent;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.util.List;
import org.jspecify.annotations.NullMarked;
import org.junit.jupiter.api.Test;

/** The floors of the house: a module uses only floors below its own. */
class FloorsTest {
    private static final JavaClasses HOUSE = new ClassFileImporter()
            .withImportOption(ImportOption.Predefined.DO_NOT_INCLUDE_TESTS)
            .importPackages("baton");

    @Test
    void theWholeHouseIsLookedAt() {
        for (String module : List.of(
                "kv",
                "jinja",
                "memory",
                "messages",
                "pipe",
                "store",
                "transfer",
                "connectors",
                "engine",
                "server",
                "router",
                "bench",
                "cli")) {
            assertThat(HOUSE.stream().anyMatch(type -> type.getPackageName().startsWith("baton." + module)))
                    .as(module)
                    .isTrue();
        }
    }

    @Test
    void aModuleUsesOnlyFloorsBelowItsOwn() {
        layeredArchitecture()
                .consideringOnlyDependenciesInAnyPackage("baton..")
                .ensureAllClassesAreContainedInArchitecture()
                .layer("cli")
                .definedBy("baton.cli..")
                .layer("server")
                .definedBy("baton.server..")
                .layer("router")
                .definedBy("baton.router..")
                .layer("bench")
                .definedBy("baton.bench..")
                .layer("engine")
                .definedBy("baton.engine..")
                .layer("connectors")
                .definedBy("baton.connectors..")
                .layer("store")
                .definedBy("baton.store..")
                .layer("transfer")
                .definedBy("baton.transfer..")
                .layer("pipe")
                .definedBy("baton.pipe..")
                .layer("messages")
                .definedBy("baton.messages..")
                .layer("memory")
                .definedBy("baton.memory..")
                .layer("jinja")
                .definedBy("baton.jinja..")
                .layer("kv")
                .definedBy("baton.kv..")
                .optionalLayer("testkit")
                .definedBy("baton.testkit..")
                .whereLayer("cli")
                .mayNotBeAccessedByAnyLayer()
                .whereLayer("server")
                .mayOnlyBeAccessedByLayers("cli")
                .whereLayer("router")
                .mayOnlyBeAccessedByLayers("cli")
                .whereLayer("bench")
                .mayOnlyBeAccessedByLayers("cli")
                // The router speaks HTTP, so that it can front other servers too.
                .whereLayer("engine")
                .mayOnlyBeAccessedByLayers("server", "bench", "cli")
                // The engine finds connectors by name and never names one.
                .whereLayer("connectors")
                .mayNotBeAccessedByAnyLayer()
                .whereLayer("store")
                .mayOnlyBeAccessedByLayers("connectors", "testkit")
                .whereLayer("jinja")
                .mayOnlyBeAccessedByLayers("engine")
                .whereLayer("transfer")
                .mayOnlyBeAccessedByLayers("connectors", "engine", "bench", "testkit")
                .whereLayer("pipe")
                .mayOnlyBeAccessedByLayers("connectors", "bench", "testkit")
                .whereLayer("messages")
                .mayOnlyBeAccessedByLayers("pipe", "transfer", "connectors", "router", "testkit")
                .whereLayer("memory")
                .mayOnlyBeAccessedByLayers("transfer", "engine")
                .whereLayer("testkit")
                .mayNotBeAccessedByAnyLayer()
                .check(HOUSE);
    }

    @Test
    void onlyTheModelPackageAndTheC10dWireKnowLibTorch() {
        noClasses()
                .that()
                .resideOutsideOfPackages("baton.engine.model..", "baton.pipe.c10d..")
                .should()
                .dependOnClassesThat()
                .resideInAPackage("org.bytedeco..")
                .check(HOUSE);
    }

    @Test
    void connectorsKnowNeitherSocketsNorFilesNorNativeLibraries() {
        noClasses()
                .that()
                .resideInAPackage("baton.connectors..")
                .should()
                .dependOnClassesThat(in("java.net", "java.nio.channels", "java.nio.file")
                        .and(DescribedPredicate.not(named("java.nio.file.Path"))))
                .orShould()
                .dependOnClassesThat(named("java.lang.foreign.Linker", "java.lang.foreign.SymbolLookup"))
                .check(HOUSE);
    }

    @Test
    void nothingOnAWireIsJavaSerialization() {
        noClasses()
                .should()
                .dependOnClassesThat()
                .belongToAnyOf(ObjectInputStream.class, ObjectOutputStream.class)
                .check(HOUSE);
    }

    @Test
    void noStateIsStatic() {
        noFields()
                .that()
                .areDeclaredInClassesThat()
                .resideInAPackage("baton..")
                .should(beMutableStatics())
                .check(HOUSE);
    }

    @Test
    void packagesHaveNoCycles() {
        slices().matching("baton.(**)").should().beFreeOfCycles().check(HOUSE);
    }

    @Test
    void everyPackageIsNullMarked() {
        classes()
                .that(new DescribedPredicate<JavaClass>("are top level") {
                    @Override
                    public boolean test(JavaClass type) {
                        return type.isTopLevelClass() && !type.getSimpleName().equals("package-info");
                    }
                })
                .should(new ArchCondition<JavaClass>("be in a package that is @NullMarked") {
                    @Override
                    public void check(JavaClass type, ConditionEvents events) {
                        boolean marked = type.getPackage()
                                .tryGetPackageInfo()
                                .map(info -> info.isAnnotatedWith(NullMarked.class))
                                .orElse(false);
                        events.add(
                                new SimpleConditionEvent(type, marked, type.getPackageName() + " is not @NullMarked"));
                    }
                })
                .check(HOUSE);
    }

    private static DescribedPredicate<JavaClass> in(String... packages) {
        return new DescribedPredicate<>("are in " + List.of(packages)) {
            @Override
            public boolean test(JavaClass type) {
                return List.of(packages).contains(type.getPackageName());
            }
        };
    }

    private static DescribedPredicate<JavaClass> named(String... names) {
        return new DescribedPredicate<>("are " + List.of(names)) {
            @Override
            public boolean test(JavaClass type) {
                return List.of(names).contains(type.getName());
            }
        };
    }

    private static ArchCondition<JavaField> beMutableStatics() {
        return new ArchCondition<>("be static and not final") {
            @Override
            public void check(JavaField field, ConditionEvents events) {
                boolean mutable = field.getModifiers().contains(JavaModifier.STATIC)
                        && !field.getModifiers().contains(JavaModifier.FINAL);
                events.add(new SimpleConditionEvent(field, mutable, field.getFullName()));
            }
        };
    }
}
