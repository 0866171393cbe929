package baton.testkit;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;

/** Makes objects that forward to another one, for tests that replace some of its methods. */
public final class Forwarding {
    private Forwarding() {}

    private record Signature(String name, List<Class<?>> parameters) {
        static Signature of(Method method) {
            return new Signature(method.getName(), List.of(method.getParameterTypes()));
        }
    }

    /**
     * An object that forwards all methods of an interface to {@code inner}, default methods too, but for those that {@code changes} has: its
     * public methods, each with the name and the parameters of one of the interface.
     */
    @SuppressWarnings("ReferenceEquality") // a proxy equals itself only
    public static <T> T to(Class<T> type, T inner, Object changes) {
        Map<Signature, Method> changed = new HashMap<>();
        for (Method method : changes.getClass().getDeclaredMethods()) {
            if (Modifier.isPublic(method.getModifiers()) && !method.isSynthetic()) {
                Signature signature = Signature.of(method);
                if (Arrays.stream(type.getMethods()).map(Signature::of).noneMatch(signature::equals)) {
                    throw new IllegalArgumentException(type.getName() + " has no " + signature);
                }
                method.setAccessible(true);
                changed.put(signature, method);
            }
        }
        Map<Method, Optional<Method>> found = new ConcurrentHashMap<>();
        return type.cast(Proxy.newProxyInstance(
                type.getClassLoader(), new Class<?>[] {type}, (self, method, arguments) -> {
                    if (method.getDeclaringClass() == Object.class) {
                        return switch (method.getName()) {
                            case "equals" -> self == arguments[0];
                            case "hashCode" -> System.identityHashCode(self);
                            default -> inner.toString();
                        };
                    }
                    Optional<Method> own =
                            found.computeIfAbsent(method, each -> Optional.ofNullable(changed.get(Signature.of(each))));
                    try {
                        return own.isPresent() ? own.get().invoke(changes, arguments) : method.invoke(inner, arguments);
                    } catch (InvocationTargetException e) {
                        throw e.getCause();
                    }
                }));
    }
}
