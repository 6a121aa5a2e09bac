// The arguments that the kernels of attention share.
#pragma once
#include "common.cuh"

struct Args {
    u64 q; // [rows, heads * K_DIM]
    u64 y; // [rows, heads * V_DIM]
    // For kernels that cut positions into chunks: counters, which stay zeros between launches, then what chunks leave.
    u64 scratch;
    Step step;
    Cache cache;
    u32 rows;
    u32 splits;
    u32 window; // positions that a row sees; 0xffffffff for all
    float scale;
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");
