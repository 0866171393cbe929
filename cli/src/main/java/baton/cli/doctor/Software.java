package baton.cli.doctor;

import baton.cuda.driver.CublasLt;
import baton.cuda.driver.Driver;
import baton.cuda.driver.Driver.DeviceInfo;
import baton.cuda.driver.NativeDriver;
import baton.engine.backend.ModelBackend;
import baton.engine.backend.ModelBackends;
import baton.engine.model.Device;
import baton.kv.Ticker;
import baton.memory.Platform;
import baton.memory.Posix;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.nccl.NcclTransport;
import baton.store.mooncake.StoreLibrary;
import baton.transfer.mooncake.MooncakeLibrary;
import baton.transfer.nixl.NixlLibrary;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * The libraries that Baton runs on and those that it can use, found and loaded as an instance does.
 *
 * @param rdma whether there is a device that a library for RDMA could use
 * @param nvidia whether the kernel has NVIDIA's driver
 * @param loadsLibTorch whether an instance does
 */
record Software(Map<String, String> environment, boolean rdma, boolean nvidia, boolean loadsLibTorch) {
    private static final double LEAST_GLIBC = 2.35;
    private static final String CACHE = "-XX:AOTCache=";

    List<Finding> findings() {
        List<Finding> all = new ArrayList<>();
        all.add(java());
        all.add(start());
        all.add(glibc(Platform.current(), Posix.glibcVersion()));
        all.add(libTorch());
        all.add(gpu(NativeDriver.find(), nvidia));
        all.add(cublas());
        all.add(nixl());
        all.add(nccl());
        all.add(mooncake());
        all.add(mooncakeStore());
        return all;
    }

    private static Finding java() {
        return Finding.ok(
                "Java",
                "%s %s at %s"
                        .formatted(
                                System.getProperty("java.vendor"), Runtime.version(), System.getProperty("java.home")));
    }

    private static Finding start() {
        List<String> options = ManagementFactory.getRuntimeMXBean().getInputArguments();
        Optional<String> cache = options.stream()
                .filter(option -> option.startsWith(CACHE))
                .map(option -> option.substring(CACHE.length()))
                .findFirst();
        return cache.map(file -> Finding.ok("AOT cache", file))
                .orElseGet(() -> Finding.advice(
                        "AOT cache",
                        "none: a start takes about twice the processor time",
                        "start by ./baton (or bin/baton), which makes one in a directory that it can write to"));
    }

    static Finding glibc(Platform platform, Optional<String> version) {
        if (!platform.isLinux()) {
            return Finding.ok("C library", "that of " + platform);
        }
        String remedy = "use a system with glibc %s or newer: Debian 12, Ubuntu 22.04, RHEL 10".formatted(LEAST_GLIBC);
        if (version.isEmpty()) {
            return Finding.broken("C library", "not glibc", remedy);
        }
        String[] parts = version.get().split("\\.", -1);
        String[] least = Double.toString(LEAST_GLIBC).split("\\.", -1);
        boolean newEnough;
        try {
            newEnough = Integer.parseInt(parts[0]) > Integer.parseInt(least[0])
                    || Integer.parseInt(parts[0]) == Integer.parseInt(least[0])
                            && Integer.parseInt(parts[1]) >= Integer.parseInt(least[1]);
        } catch (NumberFormatException | ArrayIndexOutOfBoundsException _) {
            newEnough = true;
        }
        String found = "glibc " + version.get();
        return newEnough ? Finding.ok("C library", found) : Finding.broken("C library", found, remedy);
    }

    private Finding libTorch() {
        ModelBackend backend = ModelBackends.on(Device.CPU);
        if (!loadsLibTorch) {
            return Finding.ok(
                    "LibTorch",
                    "not loaded, as the kernels that are chosen need none"
                            + backend.whyNoLibrary().map(why -> "; " + why).orElse(""));
        }
        try {
            return Finding.ok(
                    "LibTorch",
                    "loads" + backend.loadLibrary().map(state -> ", " + state).orElse(""));
        } catch (IllegalStateException e) {
            return Finding.broken(
                    "LibTorch",
                    String.valueOf(e.getMessage()),
                    "make room (df ~), or name another folder: BATON_JAVA_OPTS=-Dorg.bytedeco.javacpp.cachedir=DIR");
        }
    }

    /** @param nvidia whether the kernel has NVIDIA's driver, so that a GPU is likely to be there */
    static Finding gpu(NativeDriver.Search search, boolean nvidia) {
        return switch (search) {
            case NativeDriver.Search.Absent(String why) when nvidia -> Finding.advice("CUDA", why, NativeDriver.REMEDY);
            case NativeDriver.Search.Absent(String why) -> Finding.ok("CUDA", "none: " + why);
            case NativeDriver.Search.Found(Driver driver) -> {
                List<DeviceInfo> devices = IntStream.range(0, driver.deviceCount())
                        .mapToObj(driver::device)
                        .toList();
                String found = "CUDA %s: %s"
                        .formatted(
                                NativeDriver.versionText(driver.version()),
                                devices.stream().map(Software::device).collect(Collectors.joining("; ")));
                yield devices.stream().anyMatch(device -> device.capability() >= Driver.LEAST_CAPABILITY)
                        ? Finding.ok("CUDA", found)
                        : Finding.advice(
                                "CUDA",
                                found,
                                "Baton's kernels need a device of compute capability 8.0: Ampere (A100, RTX 30) or newer");
            }
        };
    }

    private static String device(DeviceInfo device) {
        return "%s with compute capability %d.%d and %s"
                .formatted(
                        device.name(),
                        device.capability() / 10,
                        device.capability() % 10,
                        Finding.size(device.bytes()));
    }

    private Finding cublas() {
        try {
            CublasLt _ = CublasLt.load(environment);
            return Finding.ok("cuBLASLt", "loads: products of long prompts on a GPU take it");
        } catch (NoSuchElementException e) {
            return Finding.ok(
                    "cuBLASLt",
                    "none, and Baton's kernels compute all products: %s; %s names it"
                            .formatted(e.getMessage(), CublasLt.VARIABLE));
        }
    }

    private Finding nixl() {
        return switch (NixlLibrary.find(Optional.empty())) {
            case NixlLibrary.Found found -> Finding.ok("NIXL", found.file().toString());
            case NixlLibrary.Absent absent -> absent("NIXL", String.join("; ", absent.tried()), NixlLibrary.REMEDY);
        };
    }

    private Finding mooncake() {
        return switch (MooncakeLibrary.find(Optional.empty())) {
            case MooncakeLibrary.Found found ->
                Finding.ok("Mooncake's engine", found.file().toString());
            case MooncakeLibrary.Absent absent -> absent("Mooncake's engine", absent.why(), MooncakeLibrary.REMEDY);
        };
    }

    private Finding mooncakeStore() {
        return switch (StoreLibrary.find(Optional.empty(), environment)) {
            case StoreLibrary.Found _ ->
                Finding.ok(
                        "Mooncake's store",
                        Optional.ofNullable(environment.get(StoreLibrary.VARIABLE))
                                .orElse(StoreLibrary.FILE));
            case StoreLibrary.Absent absent ->
                Finding.ok("Mooncake's store", "no library (" + absent.tried() + "); its REST service needs none");
        };
    }

    /** A library that only RDMA makes worth having. */
    private Finding absent(String name, String why, String remedy) {
        return rdma
                ? Finding.advice(name, why, remedy)
                : Finding.ok(name, "none, and without RDMA none is needed: " + why);
    }

    private static Finding nccl() {
        try (NcclTransport _ = NcclTransport.load(0, PeerAccess.everyone(), Ticker.system())) {
            return Finding.ok("CUDA and NCCL", "load, and there is a GPU: transport=nccl takes them");
        } catch (PipeException e) {
            return Finding.ok("CUDA and NCCL", "transport=nccl cannot be had: " + e.getMessage());
        }
    }
}
