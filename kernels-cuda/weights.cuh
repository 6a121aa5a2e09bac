// Weights in the encodings of `crates/weights/src/encoding.rs`, chosen by defines:
//   ENC      0 dense, 1 affine, 2 two-level, 3 small floats
//   W_T      type of dense values
//   BITS     bits of a code (4 or 8 for small floats; unused for dense)
//   GROUP    elements that share a scale
//   META_T   type of affine scales and biases
//   MINIMA   two-level: whether groups have minima (1) or codes are centred (0)
//   ELEMENT  small floats: 0 e2m1, 1 e4m3
//   SCALE    scale of small floats: 0 e8m0, 1 e4m3
//
// An element is `scale * number + bias` of its group. `weight_at` gives one, of any row length. The rest is for rows
// that are whole chunks: CHUNK consecutive elements, WORDS words of codes.
#pragma once
#include "common.cuh"

#ifndef W_T
#define W_T float
#endif
#ifndef META_T
#define META_T f16
#endif
#ifndef BITS
#define BITS 8
#endif
#ifndef GROUP
#define GROUP 32
#endif
#ifndef MINIMA
#define MINIMA 0
#endif
#ifndef ELEMENT
#define ELEMENT 0
#endif
#ifndef SCALE
#define SCALE 0
#endif

// Elements under one pair of f16 of a two-level row.
#define SUPER 256

DEVICE float power_of_two(int exponent) { return __uint_as_float((u32)(exponent + 127) << 23); }

// E4M3: the bits below the sign, as those of an f32, are the value times 2^-120, subnormal ones too.
DEVICE float e4m3(u32 code) {
    if ((code & 0x7f) == 0x7f) return not_a_number();
    return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * power_of_two(120);
}
// E2M1: likewise, times 2^-126.
DEVICE float e2m1(u32 code) {
    return __uint_as_float((code & 8) << 28 | (code & 7) << 22) * power_of_two(126);
}
// E8M0: 2^(code - 127); 0 is 2^-127, which is subnormal, and 255 is no number.
DEVICE float e8m0(u32 code) {
    if (code == 255) return not_a_number();
    return __uint_as_float(code == 0 ? 1u << 22 : code << 23);
}

struct Scales {
    float scale;
    float bias;
};

// Whether groups have a bias of their own.
#define BIASED (ENC == 1 || (ENC == 2 && MINIMA))

// The scale of a group as stored: what a kernel loads early and converts late.
struct GroupBits {
#if ENC == 1
    META_T scale;
    META_T bias;
#elif ENC == 2
    u8 scale;
#if MINIMA
    u8 minimum;
    f16 d_minimum;
#endif
    f16 d;
#elif ENC == 3
    u8 scale;
#endif
};

DEVICE GroupBits load_group(const Weight &w, u64 row, u32 k, u32 group) {
    GroupBits bits;
#if ENC == 1
    u64 i = row * (k / GROUP) + group;
    bits.scale = at<const META_T>(w.plane[1])[i];
    bits.bias = at<const META_T>(w.plane[2])[i];
#elif ENC == 2
    u64 i = row * (k / GROUP) + group;
    u64 over = row * (k / SUPER) + group / (SUPER / GROUP);
    bits.scale = at<const u8>(w.plane[1])[i];
#if MINIMA
    bits.minimum = at<const u8>(w.plane[2])[i];
    bits.d = at<const f16>(w.plane[3])[2 * over];
    bits.d_minimum = at<const f16>(w.plane[3])[2 * over + 1];
#else
    bits.d = at<const f16>(w.plane[2])[over];
#endif
#elif ENC == 3
    bits.scale = at<const u8>(w.plane[1])[row * (k / GROUP) + group];
#endif
    return bits;
}

// Of numbers as `number_of` gives them.
DEVICE Scales scales_of(GroupBits bits) {
#if ENC == 1
    return {to_f32(bits.scale), to_f32(bits.bias)};
#elif ENC == 2 && MINIMA
    return {to_f32(bits.d) * (float)bits.scale, -(to_f32(bits.d_minimum) * (float)bits.minimum)};
#elif ENC == 2
    return {to_f32(bits.d) * (float)(i8)bits.scale, 0.0f};
#elif ENC == 3
    return {SCALE ? e4m3(bits.scale) : e8m0(bits.scale), 0.0f};
#else
    return {1.0f, 0.0f};
#endif
}

DEVICE float number_of(u32 code) {
#if ENC == 2 && !MINIMA
    return (float)((int)code - (1 << (BITS - 1)));
#elif ENC == 3
    return ELEMENT ? e4m3(code) : e2m1(code);
#else
    return (float)code;
#endif
}

// Code `i` of a row of codes of any length. The byte after a code is read only when the code reaches into it.
DEVICE u32 code_at(const u8 *codes, u32 i) {
    u64 first = (u64)i * BITS;
    u32 shift = (u32)first % 8;
    u32 code = codes[first / 8];
    if (8 % BITS && shift + BITS > 8) code |= (u32)codes[first / 8 + 1] << 8;
    return (code >> shift) & ((1u << BITS) - 1);
}

// Elements `i..i + N` of row `row` of rows of `k`; beyond the row, zeros. `i` is a multiple of N, and N divides any
// group.
template <int N> DEVICE void weights_at(float (&out)[N], const Weight &w, u64 row, u32 k, u32 i) {
#if ENC == 0
    const W_T *values = at<const W_T>(w.plane[0]) + row * k;
#pragma unroll
    for (int j = 0; j < N; j++) out[j] = i + j < k ? to_f32(values[i + j]) : 0.0f;
#else
    if (i >= k) {
#pragma unroll
        for (int j = 0; j < N; j++) out[j] = 0;
        return;
    }
    // `k * BITS` is a multiple of 8.
    const u8 *codes = at<const u8>(w.plane[0]) + row * ((u64)k * BITS / 8);
    Scales group = scales_of(load_group(w, row, k, i / GROUP));
#pragma unroll
    for (int j = 0; j < N; j++) out[j] = fmaf(group.scale, number_of(code_at(codes, i + j)), group.bias);
#endif
}

// Element `i` of row `row` of rows of `k`.
DEVICE float weight_at(const Weight &w, u64 row, u32 k, u32 i) {
    float out[1];
    weights_at(out, w, row, k, i);
    return out[0];
}

// ---- Rows that are whole chunks ----

#if ENC == 0
#define WORDS 4
#define CHUNK ((int)(16 / sizeof(W_T)))
#elif BITS == 8
#define WORDS 4
#define CHUNK 16
#else
#define WORDS BITS
#define CHUNK 32
#endif
// Elements of a chunk that share a scale.
#define SUB (ENC == 0 || GROUP > CHUNK ? CHUNK : GROUP)

// Half `i` of a word; for f32, which has none, the word.
template <typename T> DEVICE float half_of(u32 word, int i) { return i ? high_half<T>(word) : low_half<T>(word); }
template <> DEVICE float half_of<float>(u32 word, int) { return __uint_as_float(word); }

struct alignas(16) Words4 {
    u32 x[4];
};
struct alignas(8) Words2 {
    u32 x[2];
};

// The codes of chunk `chunk` of a row. A row of whole chunks is whole words, and whole vectors of the widest kind that
// divides a chunk.
DEVICE void load_words(u32 (&word)[WORDS], const Weight &w, u64 row, u32 k, u32 chunk) {
    const u32 *from = at<const u32>(w.plane[0]) + (row * (k / CHUNK) + chunk) * WORDS;
    if (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) {
            Words4 v = ((const Words4 *)from)[i];
#pragma unroll
            for (int j = 0; j < 4; j++) word[(4 * i + j) % WORDS] = v.x[j];
        }
    } else if (WORDS % 2 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS / 2; i++) {
            Words2 v = ((const Words2 *)from)[i];
            word[(2 * i) % WORDS] = v.x[0];
            word[(2 * i + 1) % WORDS] = v.x[1];
        }
    } else {
#pragma unroll
        for (int i = 0; i < WORDS; i++) word[i] = from[i];
    }
}

// Code `j` of a chunk.
DEVICE u32 code_of(const u32 (&word)[WORDS], int j) {
    int bit = j * BITS, at = bit / 32, shift = bit % 32;
    u32 code = word[at] >> shift;
    if (shift + BITS > 32) code |= word[(at + 1) % WORDS] << ((32 - shift) % 32);
    return code & ((1u << BITS) - 1);
}

// An unsigned number below 2^22 as f32 without a conversion, which is slow: the low bits of 2^23 + code.
DEVICE float f32_of(u32 code) { return __uint_as_float(code | 0x4b000000u) - 8388608.0f; }

// Element `j` of a chunk, given the scales of its group. `j` is known when compiling.
DEVICE float value_of(const u32 (&word)[WORDS], int j, Scales group) {
#if ENC == 0
    return half_of<W_T>(word[j * sizeof(W_T) / 4], j % 2);
#elif ENC == 3
    return group.scale * number_of(code_of(word, j));
#elif ENC == 2 && !MINIMA
    return group.scale * (__uint_as_float(code_of(word, j) | 0x4b000000u) - (8388608.0f + (1 << (BITS - 1))));
#else
    return fmaf(group.scale, f32_of(code_of(word, j)), group.bias);
#endif
}

// E2M1, looked up: byte i is twice the value of code `first + i` of a word, plus 12.
DEVICE u32 e2m1_bytes(u32 codes, int first) {
    const u32 lo = 0x03020100u, hi = 0x0c080604u;
    codes >>= 4 * first;
    return 0x0c0c0c0cu + lookup4(lo, hi, codes) - lookup4(lo, hi, codes ^ 0x8888u);
}

// Element `j` of a chunk, to be rounded to 16 bits: off by up to 1/512 of a step between codes, and cheaper than
// `value_of`. A code becomes bits of a float below a leading one, 2^(23 - place) + code, and one operation takes the
// rest away again. (Small floats are exact: so are their products with scales of few bits.)
DEVICE float rough_value_of(const u32 (&word)[WORDS], int j, Scales group) {
#if ENC == 0 || (ENC == 3 && ELEMENT)
    return value_of(word, j, group);
#elif ENC == 3
    u32 bytes = e2m1_bytes(word[j / 8], j / 4 % 2 * 4);
    float x = __uint_as_float(permute_bytes(bytes, 0x47000000u, 0x7404u | (j % 4) << 4));
    return fmaf(0.5f * group.scale, x, -(32768.0f + 12.0f) * (0.5f * group.scale));
#else
    const float centre = ENC == 2 && !MINIMA ? (float)(1 << (BITS - 1)) : 0.0f;
    if (BITS == 8) {
        float x = __uint_as_float(permute_bytes(word[j / 4 % WORDS], 0x47000000u, 0x7404u | (j % 4) << 4));
        return fmaf(group.scale, x, fmaf(-(32768.0f + centre), group.scale, group.bias));
    }
    // Codes of up to 4 bits share shifts by whole bytes.
    int first = j * BITS % 32, last = 23 - BITS;
    int whole = first < 12 ? (first - 12 - 7) / 8 * 8 : first > last ? (first - last + 7) / 8 * 8 : 0;
    int shift = BITS > 4 ? first - 12 : whole;
    int place = first - shift;
    u32 bits = word[j * BITS / 32];
    if (shift > 0) bits >>= shift % 32;
    if (shift < 0) bits <<= -shift % 32;
    if (first + BITS > 32) bits |= word[(j * BITS / 32 + 1) % WORDS] << (32 - shift) % 32;
    u32 one = (u32)(127 + 23 - place) << 23;
    float x = __uint_as_float(and_or(bits, ((1u << BITS) - 1) << place, one));
    float offset = __uint_as_float(one) + centre;
    return fmaf(group.scale, x, fmaf(-offset, group.scale, group.bias));
#endif
}
