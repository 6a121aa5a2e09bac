// Ops on each element, whose rows need no telling apart, and rows rounded to int8. The defines ACTIVATE, ADD, MUL or
// QUANTIZE choose the kernel.
#include "vectors.cuh"

#ifdef QUANTIZE

struct Args {
    u64 x; // X_T [rows, cols]
    u64 y; // [rows]: groups * 32 codes, groups scales, groups sums
    u32 rows;
    u32 cols;
    u32 aligned; // every eight elements are aligned to 16 bytes
    u32 unused;
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");

// Four neighbouring lanes take a group of 32.
extern "C" __global__ void __launch_bounds__(BLOCK) quantize_rows(const Args args) {
    begin();
    u64 thread = (u64)blockIdx.x * BLOCK + threadIdx.x;
    u32 groups = (args.cols + 31) / 32, part = threadIdx.x % 4;
    u64 row = thread / 4 / groups;
    u32 group = (u32)(thread / 4 % groups), i = group * 32 + part * 8;
    // No thread leaves before the last exchange between lanes.
    bool there = row < args.rows;
    float x[8];
    load8(at<const X_T>(args.x) + row * args.cols + i, there ? left(args.cols, i) : 0, args.aligned, x);

    // As integers, numbers without their sign are in order, and a NaN is above all.
    u32 max_bits = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) max_bits = max(max_bits, __float_as_uint(x[j]) & 0x7fffffffu);
    max_bits = max(max_bits, lane_xor(max_bits, 1));
    max_bits = max(max_bits, lane_xor(max_bits, 2));
    float scale = __uint_as_float(max_bits) / 127.0f;

    u32 words[2] = {0, 0};
    i32 sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float quotient = x[j] / scale;
        // Out of range only where the scale has lost its last bits; of 0/0 and the like comes 0.
        i32 code = quotient == quotient && scale != 0.0f ? __float2int_rn(fminf(fmaxf(quotient, -128.0f), 127.0f)) : 0;
        words[j / 4] |= ((u32)code & 0xff) << (j % 4 * 8);
        sum += code;
    }
    sum += lane_xor(sum, 1);
    sum += lane_xor(sum, 2);
    if (!there) return;
    u64 y = args.y + row * groups * 40;
    u32 *codes = at<u32>(y + i);
    codes[0] = words[0];
    codes[1] = words[1];
    if (part == 0) {
        float *floats = at<float>(y + (u64)groups * 32);
        floats[group] = scale;
        floats[groups + group] = scale * (float)sum;
    }
}

#else

struct Args {
    u64 x; // X_T [elements]
    u64 b; // B_T [elements]; of an op of two inputs
    u64 y; // Y_T [elements]
    u64 elements;
    u32 function; // of common.cuh's `activate`
    u32 aligned;  // all three are aligned to 16 bytes
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");

#if defined(ACTIVATE)
#define ENTRY activate_elements
#elif defined(ADD)
#define ENTRY add_elements
#elif defined(MUL)
#define ENTRY mul_elements
#endif

extern "C" __global__ void __launch_bounds__(BLOCK) ENTRY(const Args args) {
    begin();
    u64 i = ((u64)blockIdx.x * BLOCK + threadIdx.x) * 8;
    if (i >= args.elements) return;
    u64 rest = args.elements - i;
    u32 count = rest < 8 ? (u32)rest : 8;
    float x[8];
    load8(at<const X_T>(args.x) + i, count, args.aligned, x);
#ifdef ACTIVATE
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = activate(args.function, x[j]);
#else
    float b[8];
    load8(at<const B_T>(args.b) + i, count, args.aligned, b);
#pragma unroll
    for (int j = 0; j < 8; j++) {
#ifdef ADD
        x[j] = x[j] + b[j];
#else
        x[j] = x[j] * b[j];
#endif
    }
#endif
    store8(at<Y_T>(args.y) + i, count, args.aligned, x);
}

#endif
