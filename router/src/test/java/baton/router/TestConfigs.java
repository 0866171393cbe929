package baton.router;

import baton.router.policy.PolicySettings;
import baton.router.upstream.Registrations;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** Configurations of routers, with defaults in their last components. */
final class TestConfigs {
    private TestConfigs() {}

    static RouterConfig router(
            String host,
            int port,
            List<URI> prefill,
            List<URI> decode,
            String flow,
            Optional<String> apiKey,
            RouterConfig.Limits limits) {
        return router(host, port, prefill, decode, flow, apiKey, limits, Optional.empty(), PolicySettings.DEFAULT);
    }

    static RouterConfig router(
            String host,
            int port,
            List<URI> prefill,
            List<URI> decode,
            String flow,
            Optional<String> apiKey,
            RouterConfig.Limits limits,
            Optional<Registrations.Settings> registry,
            PolicySettings policy) {
        return router(
                host, port, prefill, decode, flow, apiKey, limits, registry, policy, false, RouterConfig.Sources.NONE);
    }

    static RouterConfig router(
            String host,
            int port,
            List<URI> prefill,
            List<URI> decode,
            String flow,
            Optional<String> apiKey,
            RouterConfig.Limits limits,
            Optional<Registrations.Settings> registry,
            PolicySettings policy,
            boolean trustClientKvParams,
            RouterConfig.Sources sources) {
        return new RouterConfig(
                host,
                port,
                prefill,
                decode,
                flow,
                apiKey,
                limits,
                registry,
                policy,
                trustClientKvParams,
                sources,
                Security.NONE);
    }

    static RouterConfig.Limits limits(
            Duration connect,
            Duration prefill,
            Duration idle,
            Duration probeInterval,
            Duration drain,
            int maxBodyBytes,
            int maxInFlight) {
        return new RouterConfig.Limits(
                connect,
                prefill,
                idle,
                probeInterval,
                drain,
                maxBodyBytes,
                maxInFlight,
                RouterConfig.Limits.DEFAULT_MAX_PER_INSTANCE,
                RouterConfig.Limits.DEFAULT.continueAfter(),
                0);
    }
}
