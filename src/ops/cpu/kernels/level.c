/* The table of this instruction set's operations. */
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/panel.h"

#include <stdlib.h>

#include "base/mem.h"

#define STRING_OF(x)    #x
#define STRING_LEVEL(x) STRING_OF(x)

static bool mat_supported(enum dtype dtype)
{
    const struct dtype_info *info = dtype_info((int)dtype);
    return info->name && info->decodable;
}

static size_t mat_bytes(enum dtype dtype, int64_t rows, int64_t cols)
{
    return (size_t)((rows + PANEL_ROWS - 1) / PANEL_ROWS) *
           LEVEL_NAME(cpu_panel_bytes)(LEVEL_NAME(cpu_panel_format)(dtype), cols);
}

static void mat_free(struct backend *b, struct mat *m)
{
    (void)b;
    if (m)
        mem_unmap(((struct panel_mat *)m)->data, m->bytes);
    free(m);
}

const struct backend_ops LEVEL_NAME(cpu_ops) = {
    .name = "cpu/" STRING_LEVEL(LEVEL),
    .destroy = cpu_destroy,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .write = cpu_write,
    .read = cpu_read,
    .mat_supported = mat_supported,
    .mat_bytes = mat_bytes,
    .mat_create = LEVEL_NAME(cpu_mat_create),
    .mat_free = mat_free,
    .scratch_bytes = LEVEL_NAME(cpu_scratch_bytes),
    .reserve = cpu_reserve,
    .embed = LEVEL_NAME(cpu_embed),
    .matmul = LEVEL_NAME(cpu_matmul),
    .rmsnorm = LEVEL_NAME(cpu_rmsnorm),
    .rope = LEVEL_NAME(cpu_rope),
    .kv_write = LEVEL_NAME(cpu_kv_write),
    .attention = LEVEL_NAME(cpu_attention),
    .silu_mul = LEVEL_NAME(cpu_silu_mul),
    .gelu_mul = LEVEL_NAME(cpu_gelu_mul),
    .sigmoid_mul = LEVEL_NAME(cpu_sigmoid_mul),
    .add = LEVEL_NAME(cpu_add),
    .threads = cpu_threads,
    .parallel = cpu_parallel,
    .gather = cpu_gather,
    .slice = cpu_slice,
    .conv1d = LEVEL_NAME(cpu_conv1d),
    .delta_net = LEVEL_NAME(cpu_delta_net),
};
