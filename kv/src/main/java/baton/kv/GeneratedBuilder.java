package baton.kv;

import io.soabase.recordbuilder.core.RecordBuilder;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * The compiler writes a builder for this record: {@code XBuilder}, with one method for each component, and {@code XBuilder.With}, which
 * the record may implement to have {@code withY} for each. Components of a builder that are not optional need a value before it builds.
 */
@RecordBuilder.Template(
        options =
                @RecordBuilder.Options(
                        addConcreteSettersForOptional = RecordBuilder.ConcreteSettersForOptionalMode.ENABLED,
                        addClassRetainedGenerated = true,
                        enableGetters = false))
@Retention(RetentionPolicy.SOURCE)
@Target(ElementType.TYPE)
public @interface GeneratedBuilder {}
