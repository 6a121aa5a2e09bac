// Matrix units under one set of names: products of two matrices of 16 rows and up to 32 columns, a b^T, of 16 bits an
// element, summed in f32. MATRIX says which: 11 or 12 for the WMMA of gfx11 or gfx12 (waves of 32), 9 for the MFMA of
// gfx90a and its successors (waves of 64). The host knows by the device's architecture; no macro of a compiler is asked.
//
// Both operands lie alike. A lane has row `lane % SIDE` of each, and of the columns HELD neighbours: those from
// `lane / SIDE * HELD` on, except on gfx11, where the upper lanes repeat what the lower ones have. Since the matrix does
// not mind in which order columns come, a kernel may take others, as long as both operands take the same. Of the product a
// lane has VALUES elements: column `lane % SIDE` (a row of b) and the rows `value_row(i)` (of a).
//
// Sources: "RDNA3" and "RDNA4 Instruction Set Architecture", WMMA matrices; "AMD Instinct MI300 Instruction Set
// Architecture", dense MFMA.
#pragma once
#include "common.cuh"

// Rows of an operand. (DEPTH: columns of a step.)
#define SIDE 16

#if MATRIX == 11
#define DEPTH 16
#define HELD 16
#define VALUES 8
#elif MATRIX == 12
#define DEPTH 16
#define HELD 8
#define VALUES 8
#elif MATRIX == 9
// Two instructions of 16 columns: the lanes' first four neighbours, then their last four. So a lane reads 16 bytes at a
// time.
#define DEPTH 32
#define HELD 8
#define VALUES 4
#else
#error "MATRIX must be 9, 11 or 12: the kind of matrix units"
#endif

// A vector type: what clang's builtins take. A compiler without such types has VECTOR of its own.
#ifndef VECTOR
#define VECTOR(NAME, T, N) typedef T NAME __attribute__((ext_vector_type(N)))
#endif

static_assert(LANES == (MATRIX == 9 ? 64 : 32), "these matrix units are of waves of another width");

// Eight elements, 16 bytes: what is read and written at once.
struct alignas(16) Unit {
    u32 word[4];
};
#define UNIT 8
// Units that a lane holds of a step, and all that the step has of a row.
#define UNITS (HELD / UNIT)
#define STEP_UNITS (DEPTH / UNIT)

// A lane's part of an operand.
template <typename T> struct Fragment {
    Unit unit[UNITS];
};
// A lane's part of a product.
VECTOR(Sums, float, VALUES);

DEVICE u32 lane_id() { return threadIdx.x % LANES; }
// The row of an operand that this lane holds, and the column of a product.
DEVICE u32 lane_row() { return threadIdx.x % SIDE; }
// Which of the step's units of that row come first in its fragment.
DEVICE u32 lane_unit() { return MATRIX == 11 ? 0 : lane_id() / SIDE; }
// The row of a product that value `i` of this lane belongs to; rows from one value to the next.
#define VALUE_STEP (MATRIX == 11 ? 2 : 1)
DEVICE u32 value_row(int i) { return lane_id() / SIDE * (MATRIX == 11 ? 1 : VALUES) + VALUE_STEP * i; }

DEVICE Sums no_sums() {
    Sums sums;
#pragma unroll
    for (int i = 0; i < VALUES; i++) sums[i] = 0.0f;
    return sums;
}

// sums += a b^T.
template <typename T> DEVICE void multiply(Sums &sums, const Fragment<T> &a, const Fragment<T> &b);

#if MATRIX == 9
VECTOR(HalfVector, _Float16, 4);
VECTOR(ShortVector, short, 4);
struct alignas(8) Pair {
    u32 word[2];
};
template <typename V> DEVICE V half_unit(const Unit &unit, int i) {
    Pair pair = {{unit.word[2 * i], unit.word[2 * i + 1]}};
    return __builtin_bit_cast(V, pair);
}
template <> DEVICE void multiply<f16>(Sums &sums, const Fragment<f16> &a, const Fragment<f16> &b) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        HalfVector x = half_unit<HalfVector>(a.unit[0], i), y = half_unit<HalfVector>(b.unit[0], i);
        sums = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, sums, 0, 0, 0);
    }
}
template <> DEVICE void multiply<bf16>(Sums &sums, const Fragment<bf16> &a, const Fragment<bf16> &b) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        ShortVector x = half_unit<ShortVector>(a.unit[0], i), y = half_unit<ShortVector>(b.unit[0], i);
        sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, sums, 0, 0, 0);
    }
}
#else
VECTOR(HalfVector, _Float16, HELD);
VECTOR(ShortVector, short, HELD);
#if MATRIX == 11
#define WMMA_F16 __builtin_amdgcn_wmma_f32_16x16x16_f16_w32
#define WMMA_BF16 __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32
#else
#define WMMA_F16 __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12
#define WMMA_BF16 __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12
#endif
template <> DEVICE void multiply<f16>(Sums &sums, const Fragment<f16> &a, const Fragment<f16> &b) {
    HalfVector x = __builtin_bit_cast(HalfVector, a), y = __builtin_bit_cast(HalfVector, b);
    sums = WMMA_F16(x, y, sums);
}
template <> DEVICE void multiply<bf16>(Sums &sums, const Fragment<bf16> &a, const Fragment<bf16> &b) {
    ShortVector x = __builtin_bit_cast(ShortVector, a), y = __builtin_bit_cast(ShortVector, b);
    sums = WMMA_BF16(x, y, sums);
}
#endif

// The value of the lane SIDE lanes away, of each two rows of SIDE lanes.
template <typename T> DEVICE T other_row(T x) {
#if MATRIX == 9
    return lane_xor(x, SIDE);
#else
    u32 bits = __builtin_bit_cast(u32, x);
    return __builtin_bit_cast(T, __builtin_amdgcn_permlanex16(bits, bits, 0x76543210u, 0xfedcba98u, false, false));
#endif
}
// The largest, and the sum, of the values of the lanes that share a column of a product.
DEVICE float max_column(float x) {
    x = fmaxf(x, other_row(x));
    return MATRIX == 9 ? fmaxf(x, lane_xor(x, 2 * SIDE)) : x;
}
DEVICE float sum_column(float x) {
    x += other_row(x);
    return MATRIX == 9 ? x + lane_xor(x, 2 * SIDE) : x;
}

// The values of a lane as the elements of a column from row `lane / SIDE * VALUES` on.
DEVICE void neighbours(const Sums &sums, float (&x)[VALUES]) {
#if MATRIX == 11
    // Even rows are in the lower lanes, odd ones in the upper: each half gives the other what it needs of a half.
    bool upper = lane_id() >= SIDE;
#pragma unroll
    for (int i = 0; i < VALUES / 2; i++) {
        float kept = upper ? sums[i + VALUES / 2] : sums[i], got = other_row(upper ? sums[i] : sums[i + VALUES / 2]);
        x[2 * i] = upper ? got : kept;
        x[2 * i + 1] = upper ? kept : got;
    }
#else
#pragma unroll
    for (int i = 0; i < VALUES; i++) x[i] = sums[i];
#endif
}

// Two floats rounded into the halves of a word as `pack2` does, except that what lies in the middle of two numbers of
// bf16 goes away from zero: no architecture before gfx950 has an instruction for it, and this takes three. (A NaN whose
// bits are all ones would become 0; `not_a_number` stays one.)
template <typename T> DEVICE u32 round2(float lo, float hi) { return pack2<T>(lo, hi); }
template <> DEVICE u32 round2<bf16>(float lo, float hi) {
    return __builtin_amdgcn_perm(__float_as_uint(hi) + 0x8000u, __float_as_uint(lo) + 0x8000u, 0x07060302u);
}

// A product, or two below each other where a step has so many columns, rounded and turned: column j becomes row j of an
// operand whose columns are the rows, in an order of their own. Column c of it is row `turned_column(c)`.
#define TURNED (DEPTH / SIDE)
template <typename T> DEVICE Fragment<T> turn(const Sums (&sums)[TURNED]) {
    Fragment<T> fragment;
#if MATRIX == 11
    bool upper = lane_id() >= SIDE;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 mine = round2<T>(sums[0][2 * i], sums[0][2 * i + 1]), others = other_row(mine);
        fragment.unit[0].word[i] = upper ? others : mine;
        fragment.unit[UNITS - 1].word[i] = upper ? mine : others;
    }
#else
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Sums &from = sums[i * 2 / VALUES];
        fragment.unit[0].word[i] = round2<T>(from[i * 2 % VALUES], from[i * 2 % VALUES + 1]);
    }
#endif
    return fragment;
}
DEVICE u32 turned_column(u32 c) {
    u32 step = c / DEPTH * DEPTH, unit = c % DEPTH / UNIT, i = c % UNIT;
    if (MATRIX == 11) return step + 2 * i + unit;
    if (MATRIX == 12) return c;
    return step + i / VALUES * SIDE + unit * VALUES + i % VALUES;
}

// Nothing moves from one side of it to the other when instructions are put in order. Else all that a long product reads of
// shared memory is read first, into more registers than there are.
DEVICE void keep_order() { __builtin_amdgcn_sched_barrier(0); }

// A value that all lanes of a wave share, known as such to the compiler.
DEVICE i32 uniform(i32 x) { return __builtin_amdgcn_readfirstlane(x); }

// Eight elements at `from`; `aligned`: a multiple of 16 bytes.
template <typename T> DEVICE Unit load_unit(const T *from, bool aligned) {
    if (aligned) return *(const Unit *)from;
    Unit unit;
#pragma unroll
    for (int i = 0; i < 4; i++) unit.word[i] = from[2 * i].bits | (u32)from[2 * i + 1].bits << 16;
    return unit;
}
