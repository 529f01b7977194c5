// Two small kernels for the examples of sublight kernel: a loop of tensor-core instructions, and one that wants registers.
#include <cuda_bf16.h>

// C (64 x 32) = A (64 x k) B (k x 32), row by row, four warps; as mma.sync, which is not what sm_90 deserves.
extern "C" __global__ void __launch_bounds__(128)
tile_product(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b, float* c, int k) {
    __shared__ __align__(16) __nv_bfloat16 tile[64 * 16 + 16 * 32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum[4][4] = {};
    for (int step = 0; step < k; step += 16) {
        reinterpret_cast<uint4*>(tile)[threadIdx.x] =
            *reinterpret_cast<const uint4*>(a + (threadIdx.x / 2) * k + step + 8 * (threadIdx.x % 2));
        if (threadIdx.x < 64)
            reinterpret_cast<uint4*>(tile + 1024)[threadIdx.x] =
                *reinterpret_cast<const uint4*>(b + (step + threadIdx.x / 4) * 32 + 8 * (threadIdx.x % 4));
        __syncthreads();
        unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(tile + warp * 256 + (lane % 16) * 16 + lane / 16 * 8));
        unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(tile + 1024 + (lane % 16) * 32 + lane / 16 * 8));
        unsigned x[4], y[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at));
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "r"(from + 32 * half));
            #pragma unroll
            for (int n = 0; n < 2; ++n) {
                float* s = sum[2 * half + n];
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                             "{%0,%1,%2,%3};" : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                             : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[2 * n]), "r"(y[2 * n + 1]));
            }
        }
        __syncthreads();
    }
    for (int n = 0; n < 4; ++n)
        for (int i = 0; i < 4; ++i)
            c[(warp * 16 + lane / 4 + 8 * (i / 2)) * 32 + n * 8 + (lane % 4) * 2 + i % 2] = sum[n][i];
}

// Forty running sums a thread that feed each other. BLOCKS: that an SM is to hold; 16 leave 32 registers a thread.
extern "C" __global__ void __launch_bounds__(128, BLOCKS)
running_sums(float* out, const float* in, int n) {
    float sum[40];
    #pragma unroll
    for (int i = 0; i < 40; ++i) sum[i] = in[i * 128 + threadIdx.x];
    for (int step = 0; step < n; ++step) {
        float x = in[step];
        #pragma unroll
        for (int i = 0; i < 40; ++i) sum[i] = sum[i] * sum[(i + 13) % 40] + x;
    }
    #pragma unroll
    for (int i = 0; i < 40; ++i) out[i * 128 + threadIdx.x] = sum[i];
}
