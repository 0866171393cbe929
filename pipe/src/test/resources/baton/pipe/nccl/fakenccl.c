/*
 * Stands in for libnccl.so.2 and libcudart.so in StandInNcclTest: two devices with memory of the host, and communicators of two ranks of one
 * process. A stream's operations are done when somebody asks for its state, each when those before it are.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 1, IN_PROGRESS = 7, NOT_READY = 600 };

typedef struct { char internal[128]; } UniqueId;
typedef struct Operation Operation;
typedef struct Comm Comm;
typedef struct { Operation *first; } Stream;

struct Comm { UniqueId id; int rank, ready, aborted; Comm *other, *next; Operation *sending; };
struct Operation { Operation *next; int kind; char *to; const char *from; size_t bytes; Comm *comm; int begun; };
enum { COPY, SEND, RECEIVE };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Comm *comms;
static uint64_t ids;
static __thread int device = -1;

#define LOCKED(body) pthread_mutex_lock(&lock); body; pthread_mutex_unlock(&lock)

const char *ncclGetErrorString(int code) { return "an error"; }
const char *cudaGetErrorString(int code) { return "an error"; }
int cudaGetDeviceCount(int *out) { *out = 2; return OK; }
int cudaSetDevice(int number) { device = number; return number < 2 ? OK : INVALID; }
int cudaMalloc(void **out, size_t bytes) { *out = malloc(bytes); return device < 0 ? INVALID : OK; }
int cudaFree(void *memory) { free(memory); return OK; }
int cudaMallocHost(void **out, size_t bytes) { return cudaMalloc(out, bytes); }
int cudaFreeHost(void *memory) { free(memory); return OK; }

int cudaStreamCreateWithFlags(Stream **out, int flags) { *out = calloc(1, sizeof(Stream)); return flags == 1 ? OK : INVALID; }
int cudaStreamDestroy(Stream *stream) {
    int code = stream->first ? INVALID : OK;
    free(stream);
    return code;
}

static int enqueue(Stream *stream, Operation operation) {
    Operation *added = malloc(sizeof operation);
    *added = operation;
    LOCKED({
        Operation **end = &stream->first;
        while (*end) end = &(*end)->next;
        *end = added;
    });
    return OK;
}

int cudaMemcpyAsync(char *to, const char *from, size_t bytes, int kind, Stream *stream) {
    return kind == 1 || kind == 2 ? enqueue(stream, (Operation) { NULL, COPY, to, from, bytes }) : INVALID;
}

static int stalled;

/* While it is not 0, sends and receives are not done, not even those of aborted communicators. Grows when a receive is not. */
int stallTransfers(int set) { return set < 0 ? stalled : (stalled = set); }

static int done(Operation *operation) {
    if (operation->kind == COPY) {
        memcpy(operation->to, operation->from, operation->bytes);
        return 1;
    }
    if (stalled) {
        stalled += operation->kind == RECEIVE;
        return 0;
    }
    Comm *own = operation->comm;
    if (own->aborted) return 1;
    if (operation->kind == SEND) {
        if (!operation->begun) {
            if (own->sending) return 0;
            own->sending = operation;
            operation->begun = 1;
        }
        return own->sending != operation;
    }
    Operation *sent = own->other ? own->other->sending : NULL;
    if (!sent) return 0;
    memcpy(operation->to, sent->from, operation->bytes < sent->bytes ? operation->bytes : sent->bytes);
    own->other->sending = NULL;
    return 1;
}

int cudaStreamQuery(Stream *stream) {
    int left;
    LOCKED({
        while (stream->first && done(stream->first)) {
            Operation *ended = stream->first;
            stream->first = ended->next;
            free(ended);
        }
        left = stream->first != NULL;
    });
    return left ? NOT_READY : OK;
}

int ncclGetUniqueId(UniqueId *out) {
    LOCKED(ids++);
    memset(out, 0, sizeof *out);
    memcpy(out, &ids, sizeof ids);
    return OK;
}

int ncclCommInitRankConfig(Comm **out, int ranks, UniqueId id, int rank, int *config) {
    if (ranks != 2 || device < 0 || config[2] != (int) 0xcafebeef || config[4] != 0) return INVALID;
    Comm *made = calloc(1, sizeof *made);
    made->id = id;
    made->rank = rank;
    LOCKED({
        for (Comm *each = comms; each; each = each->next) {
            if (!memcmp(&each->id, &id, sizeof id) && each->rank != rank) {
                each->other = made;
                made->other = each;
                made->ready = each->ready = 1;
            }
        }
        made->next = comms;
        comms = made;
    });
    *out = made;
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(Comm *comm, int *out) { *out = comm->ready ? OK : IN_PROGRESS; return OK; }
int ncclGroupStart(void) { return OK; }
int ncclGroupEnd(void) { return OK; }
int ncclSend(const char *from, size_t bytes, int type, int peer, Comm *comm, Stream *stream) {
    return type == 0 && peer != comm->rank ? enqueue(stream, (Operation) { NULL, SEND, NULL, from, bytes, comm }) : INVALID;
}
int ncclRecv(char *to, size_t bytes, int type, int peer, Comm *comm, Stream *stream) {
    return type == 0 && peer != comm->rank ? enqueue(stream, (Operation) { NULL, RECEIVE, to, NULL, bytes, comm }) : INVALID;
}

/* Its operations stay in their streams and do nothing more; its memory stays for them. */
int ncclCommAbort(Comm *comm) {
    LOCKED({
        comm->aborted = 1;
        comm->sending = NULL;
        if (comm->other) comm->other->other = NULL;
        for (Comm **each = &comms; *each; each = &(*each)->next) {
            if (*each == comm) { *each = comm->next; break; }
        }
    });
    return OK;
}
