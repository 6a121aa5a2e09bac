// Few rows of x in int8 (Op::QuantizeRows): four products of bytes an instruction, summed in i32 within a group of x.
//
// Defines, beside those of matmul.cuh: ROWS, rows of x that a block takes (1, 2, 4, 8); WROWS, rows of a matrix that a
// wave takes; MIXED, whether an instruction multiplies signed by unsigned bytes (gfx11 and later) or only signed by signed
// ones. Weights are affine of 4 or 8 bits in groups of whole blocks.
//
// A lane takes blocks of 32 columns `lane, lane + LANES, ...` of a row in order, then the lanes are summed. That order is
// the same whatever ROWS and WROWS are, so all agree to the last bit.
#include "matmul.cuh"

#define THREADS 256
#define WAVES (THREADS / LANES)
// (row of a matrix, matrix) pairs of a wave.
#define LINES (WROWS * MATRICES)
// Columns that share a scale of x, and words of their codes.
#define BLOCK 32
#define X_WORDS (BLOCK / 4)
#define W_WORDS (BLOCK / 4 * BITS / 8)
// Blocks of a line that are loaded before the first is used.
#define AHEAD (LINES >= 4 || ROWS > 2 ? 1 : 4 / LINES)

static_assert(ENC == 1 && (BITS == 4 || BITS == 8) && GROUP % BLOCK == 0, "weights of bytes or of halves of them");

// sum + the four products of a code of x and one of a weight: unsigned, or where only signed ones can be multiplied 8-bit
// ones less 128.
DEVICE i32 dot4(u32 x, u32 w, i32 sum) {
#if MIXED
    return __builtin_amdgcn_sudot4(true, (i32)x, false, (i32)w, sum, false);
#else
    return __builtin_amdgcn_sdot4((i32)x, (i32)(BITS == 8 ? w ^ 0x80808080u : w), sum, false);
#endif
}

// A block of a line as it is stored.
struct Line {
    u32 word[W_WORDS];
    GroupBits bits;
};

DEVICE void load_line(Line &line, const Weight &w, u64 row, u32 k, u32 block) {
    const Words4 *from = at<const Words4>(w.plane[0]) + (row * (k / BLOCK) + block) * (W_WORDS / 4);
#pragma unroll
    for (int i = 0; i < W_WORDS / 4; i++) {
        Words4 v = from[i];
#pragma unroll
        for (int j = 0; j < 4; j++) line.word[4 * i + j] = v.x[j];
    }
    line.bits = load_group(w, row, k, block * BLOCK / GROUP);
}

// Scale and bias, for codes as `dot4` takes them.
DEVICE Scales dot_scales(GroupBits bits) {
    Scales s = scales_of(bits);
    if (BITS == 8 && !MIXED) s.bias = fmaf(128.0f, s.scale, s.bias);
    return s;
}

// A block of a row of x: codes in the order of the weights', their scale, and the sum of what they stand for.
struct Part {
    u32 word[X_WORDS];
    float scale;
    float sum;
};

DEVICE void load_part(Part &part, const Args &args, u32 row, u32 block) {
    u32 blocks = args.k / BLOCK;
    u64 from = args.x + (u64)(row < args.rows ? row : 0) * blocks * (BLOCK + 8);
    // Rows begin at multiples of eight bytes.
    const Words2 *codes = at<const Words2>(from) + block * (X_WORDS / 2);
#pragma unroll
    for (int i = 0; i < X_WORDS; i += 2) {
        Words2 v = codes[i / 2];
        // A word of weights of 4 bits comes apart into codes 0, 2, 4, 6 and 1, 3, 5, 7.
        part.word[i] = BITS == 4 ? __builtin_amdgcn_perm(v.x[1], v.x[0], 0x06040200u) : v.x[0];
        part.word[i + 1] = BITS == 4 ? __builtin_amdgcn_perm(v.x[1], v.x[0], 0x07050301u) : v.x[1];
    }
    const float *floats = at<const float>(from + (u64)blocks * BLOCK) + block;
    part.scale = floats[0];
    part.sum = floats[blocks];
}

DEVICE i32 dot(const Line &line, const Part &part) {
    i32 sum = 0;
#pragma unroll
    for (int i = 0; i < W_WORDS; i++) {
        if (BITS == 4) {
            sum = dot4(part.word[(2 * i) % X_WORDS], line.word[i] & 0x0f0f0f0fu, sum);
            sum = dot4(part.word[(2 * i + 1) % X_WORDS], line.word[i] >> 4 & 0x0f0f0f0fu, sum);
        } else {
            sum = dot4(part.word[i % X_WORDS], line.word[i], sum);
        }
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) matmul_dot4(const Args args) {
    begin();
    // Blocks of the same weights are neighbours.
    u32 tiles = (args.rows + ROWS - 1) / ROWS, row0 = blockIdx.x % tiles * ROWS;
    u32 lane = threadIdx.x % LANES;
    u32 column0 = (blockIdx.x / tiles * WAVES + threadIdx.x / LANES) * WROWS;
    float acc[LINES][ROWS];
#pragma unroll
    for (int l = 0; l < LINES; l++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[l][r] = 0;
    }
    u32 blocks = args.k / BLOCK;
    for (u32 first = lane; first < blocks; first += AHEAD * LANES) {
        Line line[AHEAD][LINES];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            u32 block = first + a * LANES;
            if (block >= blocks) break;
#pragma unroll
            for (int l = 0; l < LINES; l++) {
                u32 column = column0 + l / MATRICES;
                load_line(line[a][l], args.w[l % MATRICES], column < args.n ? column : args.n - 1, args.k, block);
            }
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            u32 block = first + a * LANES;
            if (block >= blocks) break;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                Part part;
                load_part(part, args, row0 + r, block);
#pragma unroll
                for (int l = 0; l < LINES; l++) {
                    Scales s = dot_scales(line[a][l].bits);
                    float sum = (float)dot(line[a][l], part);
                    acc[l][r] = fmaf(s.bias, part.sum, fmaf(s.scale * part.scale, sum, acc[l][r]));
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < WROWS; i++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum[MATRICES];
#pragma unroll
            for (int m = 0; m < MATRICES; m++) sum[m] = sum_lanes(acc[i * MATRICES + m][r]);
            bool mine = lane == (i * ROWS + r) % LANES;
            if (mine && column0 + i < args.n && row0 + r < args.rows) finish(args, row0 + r, column0 + i, sum);
        }
    }
}
