/*
 * Stands in for libcublasLt.so in LargeProductsTest: products of column-major matrices in the host's memory, where fakecuda.c has that of its
 * device. A call that the library would refuse, or that Baton is not to make, gives an error. Built with -DCREATED=1 it
 * makes no handle.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15, F32 = 0, F16 = 2, BF16 = 14 };

typedef struct { int compute, scale, transposed, epilogue; float *bias; } Desc;
typedef struct { int type; uint64_t rows, columns; int64_t stride; } Layout;
typedef struct { uint64_t workspace; uint32_t schemes, alignment[4]; } Preference;
typedef struct { uint64_t data[8]; size_t workspace; int state; float waves; int reserved[4]; } Result;

static const uint64_t HANDLE = 0xb1a5;
static int objects, chosen;

int fake_objects(void) { return objects; }
int fake_chosen(void) { return chosen; }

static void *made(size_t bytes) { objects++; return calloc(1, bytes); }
static int destroyed(void *object) { objects--; free(object); return OK; }

#ifdef CREATED
int cublasLtCreate(uint64_t *out) { return CREATED; }
#else
int cublasLtCreate(uint64_t *out) { objects++; *out = HANDLE; return OK; }
#endif
int cublasLtDestroy(uint64_t handle) { objects--; return handle == HANDLE ? OK : INVALID_VALUE; }

int cublasLtMatmulDescCreate(Desc **out, int compute, int scale) {
    *out = made(sizeof(Desc));
    (*out)->compute = compute;
    (*out)->scale = scale;
    (*out)->epilogue = 1;
    return OK;
}
int cublasLtMatmulDescDestroy(Desc *desc) { return destroyed(desc); }
int cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *value, size_t bytes) {
    if (attribute == 3 && bytes == 4) memcpy(&desc->transposed, value, 4);
    else if (attribute == 7 && bytes == 4) memcpy(&desc->epilogue, value, 4);
    else if (attribute == 8 && bytes == 8) memcpy(&desc->bias, value, 8);
    else return INVALID_VALUE;
    return OK;
}

int cublasLtMatrixLayoutCreate(Layout **out, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    *out = made(sizeof(Layout));
    **out = (Layout) { type, rows, columns, stride };
    return OK;
}
int cublasLtMatrixLayoutDestroy(Layout *layout) { return destroyed(layout); }
int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t bytes) {
    if (attribute != 3 || bytes != 8) return INVALID_VALUE;
    memcpy(&layout->columns, value, 8);
    return OK;
}

int cublasLtMatmulPreferenceCreate(Preference **out) { *out = made(sizeof(Preference)); (*out)->schemes = 7; return OK; }
int cublasLtMatmulPreferenceDestroy(Preference *preference) { return destroyed(preference); }
int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t bytes) {
    if (attribute == 1 && bytes == 8) memcpy(&preference->workspace, value, 8);
    else if (attribute == 3 && bytes == 4) memcpy(&preference->schemes, value, 4);
    else if (attribute >= 5 && attribute < 9 && bytes == 4) memcpy(&preference->alignment[attribute - 5], value, 4);
    else return INVALID_VALUE;
    return OK;
}

int cublasLtMatmulAlgoGetHeuristic(uint64_t handle, Desc *desc, Layout *a, Layout *b, Layout *c, Layout *d, Preference *preference, int count,
        Result *results, int *found) {
    if (handle != HANDLE || count != 1 || c != d || desc->compute != 68 || desc->scale != F32 || preference->schemes != 0) return INVALID_VALUE;
    for (int i = 0; i < 4; i++) if (preference->alignment[i] != 16) return INVALID_VALUE;
    if (desc->epilogue == 4 && (uint64_t) desc->bias % 32 != 16) return INVALID_VALUE;
    if (d->rows == 24) return NOT_SUPPORTED;
    *found = d->rows != 40;
    chosen++;
    results->data[0] = d->rows;
    results->data[7] = a->rows;
    results->workspace = preference->workspace;
    return OK;
}

static float number(const void *memory, int type, size_t i) {
    if (type == F32) return ((const float *) memory)[i];
    if (type == F16) return ((const _Float16 *) memory)[i];
    uint32_t bits = ((const uint16_t *) memory)[i] << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}

int cublasLtMatmul(uint64_t handle, Desc *desc, const float *alpha, const void *a, Layout *al, const void *b, Layout *bl, const float *beta,
        const float *c, Layout *cl, float *d, Layout *dl, const uint64_t *algo, void *workspace, size_t bytes, uint64_t stream) {
    if (handle != HANDLE || *alpha != 1 || c != d || cl != dl || stream != 0x1000000051 || !workspace || bytes < 1 << 20) return INVALID_VALUE;
    if (!desc->transposed || algo[0] != dl->rows || algo[7] != al->rows) return INVALID_VALUE;
    if (al->rows != bl->rows || al->columns != dl->rows || bl->columns != dl->columns || dl->type != F32 || al->type != bl->type) return INVALID_VALUE;
    if (dl->rows == 48 && dl->columns > 1024) return NOT_SUPPORTED;
    for (uint64_t column = 0; column < dl->columns; column++) {
        for (uint64_t row = 0; row < dl->rows; row++) {
            float sum = desc->epilogue == 4 ? desc->bias[row] : 0;
            for (uint64_t k = 0; k < al->rows; k++) {
                sum += number(a, al->type, row * al->stride + k) * number(b, bl->type, column * bl->stride + k);
            }
            float *to = d + column * dl->stride + row;
            *to = sum + (*beta == 0 ? 0 : *beta * *to);
        }
    }
    return OK;
}
