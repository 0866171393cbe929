/*
 * Stands in for libcuda.so.1 in NativeDriverTest: each function checks the context, writes a line with its arguments to a log, and does
 * on the host's memory what the driver does on a device's. Built with -DVERSION and -DDEVICES.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef VERSION
#define VERSION 12040
#endif
#ifndef DEVICES
#define DEVICES 1
#endif

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201, INVALID_PTX = 218, NOT_FOUND = 500, NOT_READY = 600 };

typedef struct { char reserved[64]; } IpcHandle;

static char text[1 << 16];
static size_t used;
static uint64_t current;
static const uint64_t CONTEXT = 0xc0de;

static void line(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
}

/* The lines since the last call. */
const char *fake_log(void) {
    static char taken[sizeof text];
    memcpy(taken, text, used + 1);
    used = 0;
    text[0] = 0;
    return taken;
}

#define IN_CONTEXT if (current != CONTEXT) return INVALID_CONTEXT

int cuGetErrorName(int code, const char **out) {
    switch (code) {
    case INVALID_VALUE: *out = "CUDA_ERROR_INVALID_VALUE"; return OK;
    case OUT_OF_MEMORY: *out = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
    case NO_DEVICE: *out = "CUDA_ERROR_NO_DEVICE"; return OK;
    case INVALID_CONTEXT: *out = "CUDA_ERROR_INVALID_CONTEXT"; return OK;
    case INVALID_PTX: *out = "CUDA_ERROR_INVALID_PTX"; return OK;
    default: *out = NULL; return INVALID_VALUE;
    }
}

int cuGetErrorString(int code, const char **out) {
    switch (code) {
    case OUT_OF_MEMORY: *out = "out of memory"; return OK;
    case NO_DEVICE: *out = "no CUDA-capable device is detected"; return OK;
    case INVALID_PTX: *out = "a PTX JIT compilation failed"; return OK;
    default: *out = NULL; return INVALID_VALUE;
    }
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : DEVICES < 0 ? NO_DEVICE : OK; }
int cuDriverGetVersion(int *out) { *out = VERSION; return OK; }
int cuDeviceGetCount(int *out) { *out = DEVICES; return OK; }
int cuDeviceGet(int *out, int ordinal) { *out = 7 + ordinal; return ordinal < DEVICES ? OK : INVALID_VALUE; }
int cuDeviceGetName(char *out, int bytes, int device) { snprintf(out, bytes, "Fake %d", device); return OK; }
int cuDeviceGetUuid_v2(char *out, int device) { for (int i = 0; i < 16; i++) out[i] = device * 16 + i; return OK; }
int cuDeviceTotalMem_v2(size_t *out, int device) { *out = 80ull << 30; return OK; }

int cuDeviceGetAttribute(int *out, int attribute, int device) {
    switch (attribute) {
    case 16: *out = 132; return OK;
    case 75: *out = 9; return OK;
    case 76: *out = 0; return OK;
    case 97: *out = 232448; return OK;
    default: return INVALID_VALUE;
    }
}

int cuDevicePrimaryCtxRetain(uint64_t *out, int device) { *out = CONTEXT; line("retain %d\n", device); return OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { line("release %d\n", device); return OK; }
int cuCtxSetCurrent(uint64_t context) { current = context; return OK; }

int cuMemGetInfo_v2(size_t *available, size_t *total) { IN_CONTEXT; *available = 5ull << 32; *total = 6ull << 32; return OK; }

int cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    IN_CONTEXT;
    if (bytes > 1ull << 32) return OUT_OF_MEMORY;
    *out = (uint64_t) malloc(bytes);
    return OK;
}

int cuMemFree_v2(uint64_t address) { IN_CONTEXT; free((void *) address); return OK; }

int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) { IN_CONTEXT; *out = malloc(bytes); line("host %zu %u\n", bytes, flags); return OK; }
int cuMemFreeHost(void *memory) { IN_CONTEXT; free(memory); line("free host\n"); return OK; }
int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) { IN_CONTEXT; line("register %zu %u %d\n", bytes, flags, *(char *) memory); return OK; }
int cuMemHostUnregister(void *memory) { IN_CONTEXT; line("unregister %d\n", *(char *) memory); return OK; }

int cuStreamCreate(uint64_t *out, unsigned flags) { IN_CONTEXT; *out = 0x1000000051; line("stream %u\n", flags); return OK; }
int cuStreamDestroy_v2(uint64_t stream) { IN_CONTEXT; line("destroy stream %llx\n", stream); return OK; }
int cuStreamSynchronize(uint64_t stream) { IN_CONTEXT; line("synchronize %llx\n", stream); return OK; }
int cuStreamWaitEvent(uint64_t stream, uint64_t event, unsigned flags) { IN_CONTEXT; line("wait %llx %llx %u\n", stream, event, flags); return OK; }

static int asked;

int cuEventCreate(uint64_t *out, unsigned flags) { IN_CONTEXT; *out = 0x1000000077; asked = 0; line("event %u\n", flags); return OK; }
int cuEventDestroy_v2(uint64_t event) { IN_CONTEXT; line("destroy event %llx\n", event); return OK; }
int cuEventRecord(uint64_t event, uint64_t stream) { IN_CONTEXT; asked = 0; line("record %llx %llx\n", event, stream); return OK; }
int cuEventQuery(uint64_t event) { IN_CONTEXT; return event == 0 ? INVALID_VALUE : asked++ ? OK : NOT_READY; }
int cuEventElapsedTime(float *out, uint64_t from, uint64_t to) { IN_CONTEXT; *out = 2.5f; line("elapsed %llx %llx\n", from, to); return OK; }

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, uint64_t stream) { IN_CONTEXT; memcpy((void *) to, from, bytes); return OK; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, uint64_t stream) { IN_CONTEXT; memcpy(to, (void *) from, bytes); return OK; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, uint64_t stream) { IN_CONTEXT; memcpy((void *) to, (void *) from, bytes); return OK; }
typedef struct { size_t x, y; int kind; char *host, *device; void *array; size_t pitch; } End;
typedef struct { End from, to; size_t width, height; } Copy2D;

int cuMemcpy2DAsync_v2(const Copy2D *copy, uint64_t stream) {
    IN_CONTEXT;
    line("rows %zu %zu from %d %zu to %d %zu stream %llx\n", copy->height, copy->width, copy->from.kind, copy->from.pitch, copy->to.kind, copy->to.pitch, stream);
    for (size_t i = 0; i < copy->height; i++) {
        char *from = copy->from.kind == 1 ? copy->from.host : copy->from.device;
        char *to = copy->to.kind == 1 ? copy->to.host : copy->to.device;
        memcpy(to + i * copy->to.pitch, from + i * copy->from.pitch, copy->width);
    }
    return copy->from.x || copy->from.y || copy->to.x || copy->to.y ? INVALID_VALUE : OK;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, uint64_t stream) { IN_CONTEXT; memset((void *) to, value, bytes); return OK; }

int cuModuleLoadDataEx(uint64_t *out, const char *image, unsigned count, int *options, void **values) {
    IN_CONTEXT;
    line("module %s", image);
    if (!strstr(image, "broken")) { *out = 0x300; return OK; }
    for (unsigned i = 0; i + 1 < count; i++) {
        if (options[i] == 5 && options[i + 1] == 6) {
            snprintf(values[i], (size_t) values[i + 1], "ptxas fatal: line 3, broken");
        }
    }
    return INVALID_PTX;
}

int cuModuleUnload(uint64_t module) { IN_CONTEXT; line("unload %llx\n", module); return OK; }
/* A function's handle is the number of its parameters, which ends its name. */
int cuModuleGetFunction(uint64_t *out, uint64_t module, const char *name) {
    IN_CONTEXT;
    *out = name[strlen(name) - 1] - '0';
    return *out < 10 ? OK : NOT_FOUND;
}
int cuFuncSetAttribute(uint64_t function, int attribute, int value) { IN_CONTEXT; line("attribute %llx %d %d\n", function, attribute, value); return OK; }

int cuLaunchKernel(uint64_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
        uint64_t stream, void **parameters, void **extra) {
    IN_CONTEXT;
    line("launch %llx grid %u %u %u block %u %u %u shared %u stream %llx extra %p:", function, gx, gy, gz, bx, by, bz, shared, stream, extra);
    for (uint64_t i = 0; i < function; i++) line(" %llx", *(uint64_t *) parameters[i]);
    line("\n");
    return OK;
}

int cuStreamBeginCapture_v2(uint64_t stream, int mode) { IN_CONTEXT; line("capture %llx %d\n", stream, mode); return OK; }
int cuStreamEndCapture(uint64_t stream, uint64_t *out) { IN_CONTEXT; *out = 0x900; line("captured %llx\n", stream); return OK; }
int cuGraphInstantiateWithFlags(uint64_t *out, uint64_t graph, unsigned long long flags) { IN_CONTEXT; *out = 0x901; line("instantiate %llx %llu\n", graph, flags); return OK; }
int cuGraphDestroy(uint64_t graph) { IN_CONTEXT; line("destroy graph %llx\n", graph); return OK; }
int cuGraphLaunch(uint64_t graph, uint64_t stream) { IN_CONTEXT; line("replay %llx %llx\n", graph, stream); return OK; }
int cuGraphExecDestroy(uint64_t graph) { IN_CONTEXT; line("destroy exec %llx\n", graph); return OK; }

int cuIpcGetMemHandle(IpcHandle *out, uint64_t address) {
    IN_CONTEXT;
    for (int i = 0; i < 64; i++) out->reserved[i] = i;
    memcpy(out->reserved, &address, 8);
    return OK;
}

int cuIpcOpenMemHandle_v2(uint64_t *out, IpcHandle handle, unsigned flags) {
    IN_CONTEXT;
    for (int i = 8; i < 64; i++) if (handle.reserved[i] != i) return INVALID_VALUE;
    memcpy(out, handle.reserved, 8);
    line("open %u\n", flags);
    return OK;
}

int cuIpcCloseMemHandle(uint64_t address) { IN_CONTEXT; line("close\n"); return OK; }
