// Any number of rows of x, any types, any sizes: tiles of x and of decoded weights in shared memory, products and sums
// in f32. Defines: those of matmul.cuh.
#include "matmul.cuh"

// A block makes BM x BN elements of y, 4 x 4 a thread, BK columns of x and of the weights at a time.
#define BM 64
#define BN 64
#define BK 16
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS) matmul_gemm(const Args args) {
    begin();
    // Four more floats a row keep its vectors aligned and spread its columns over the banks.
    __shared__ __align__(16) float xs[BK][BM + 4];
    __shared__ __align__(16) float ws[MATRICES][BK][BN + 4];
    u32 tiles = (args.rows + BM - 1) / BM;
    u32 column0 = blockIdx.x / tiles * BN, row0 = blockIdx.x % tiles * BM;
    u32 ty = threadIdx.x / 16 * 4, tx = threadIdx.x % 16 * 4;
    // What a thread brings: four neighbours of a row.
    u32 line = threadIdx.x / 4, part = threadIdx.x % 4 * 4;
    u32 x_row = row0 + line, w_row = column0 + line;
    const X_T *x = at<const X_T>(args.x) + (u64)(x_row < args.rows ? x_row : 0) * args.k;

    float acc[MATRICES][4][4];
#pragma unroll
    for (int m = 0; m < MATRICES; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) acc[m][i][j] = 0;
        }
    }
    for (u32 k0 = 0; k0 < args.k; k0 += BK) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 k = k0 + part + i;
            xs[part + i][line] = x_row < args.rows && k < args.k ? to_f32(x[k]) : 0.0f;
        }
#pragma unroll
        for (int m = 0; m < MATRICES; m++) {
            float w[4] = {0, 0, 0, 0};
            if (w_row < args.n) weights_at(w, args.w[m], w_row, args.k, k0 + part);
#pragma unroll
            for (int i = 0; i < 4; i++) ws[m][part + i][line] = w[i];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; k++) {
            float a[4];
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = xs[k][ty + i];
#pragma unroll
            for (int m = 0; m < MATRICES; m++) {
                float b[4];
#pragma unroll
                for (int j = 0; j < 4; j++) b[j] = ws[m][k][tx + j];
#pragma unroll
                for (int i = 0; i < 4; i++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) acc[m][i][j] = fmaf(a[i], b[j], acc[m][i][j]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float sum[MATRICES];
#pragma unroll
            for (int m = 0; m < MATRICES; m++) sum[m] = acc[m][i][j];
            if (row0 + ty + i < args.rows && column0 + tx + j < args.n)
                finish(args, row0 + ty + i, column0 + tx + j, sum);
        }
    }
}
