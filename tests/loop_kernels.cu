// Kernels whose loops docs/kernel-loops.md counts by hand. Ours; they need not be fast, but be what their name says.
#include <cstdint>

// Four wgmma 64x128x16 an iteration, from shared memory; nothing else to do.
extern "C" __global__ void __launch_bounds__(128) wgmma_loop(uint64_t a, uint64_t b, float* out, int n) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    float c[64] = {};
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        asm volatile("wgmma.fence.sync.aligned;");
#pragma unroll
        for (int k = 0; k < 4; k++)
            asm volatile(
                "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"
                "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,"
                "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, 0, 0;"
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                  "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                  "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]),
                  "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                  "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]),
                  "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]),
                  "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]), "+f"(c[49]), "+f"(c[50]),
                  "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]), "+f"(c[56]), "+f"(c[57]),
                  "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
                : "l"(a + 2 * k + i), "l"(b + 2 * k + i));
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;");
    }
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += c[i];
    out[threadIdx.x] = sum;
#endif
}

// mma.sync with fp8 inputs: QMMA where the tensor cores take it so, conversions and HMMA where they do not.
extern "C" __global__ void __launch_bounds__(128) mma_fp8(const uint32_t* in, float* out, int n) {
#if __CUDA_ARCH__ >= 890
    float c[4] = {};
    uint32_t a[4], b[2];
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < 4; j++) a[j] = in[i * 256 + j * 32 + threadIdx.x];
        for (int j = 0; j < 2; j++) b[j] = in[i * 256 + j * 32 + 128 + threadIdx.x];
        asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    out[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
#endif
}

// The inner product of an fp32 GEMM without tensor cores: 8x8 results a thread, operands from shared memory.
extern "C" __global__ void __launch_bounds__(256) sgemm_loop(const float* in, float* out, int n) {
    __shared__ float4 tile[2048];
    for (int i = threadIdx.x; i < 2048; i += 256) tile[i] = reinterpret_cast<const float4*>(in)[i];
    __syncthreads();
    float c[8][8] = {};
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        float4 a0 = tile[(k & 15) * 32 + threadIdx.x / 16], a1 = tile[(k & 15) * 32 + threadIdx.x / 16 + 16];
        float4 b0 = tile[(k & 15) * 32 + 1024 + threadIdx.x % 16], b1 = tile[(k & 15) * 32 + 1040 + threadIdx.x % 16];
        float a[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
        float b[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) c[i][j] += a[i] * b[j];
    }
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) out[(i * 8 + j) * 256 + threadIdx.x] = c[i][j];
}

// Sixteen exponentials an iteration.
extern "C" __global__ void __launch_bounds__(256) exp_loop(float* x, int n) {
    float y[16];
    for (int j = 0; j < 16; j++) y[j] = x[j * 256 + threadIdx.x];
#pragma unroll 1
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int j = 0; j < 16; j++) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(y[j]));
    for (int j = 0; j < 16; j++) x[j * 256 + threadIdx.x] = y[j];
}

// 96 values that live across a loop where a thread may have 64 registers: ptxas has to spill.
extern "C" __global__ void __launch_bounds__(1024) spilling_loop(float* x, int n) {
    float y[96];
#pragma unroll
    for (int j = 0; j < 96; j++) y[j] = x[j * 1024 + threadIdx.x];
#pragma unroll 1
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int j = 0; j < 96; j++) y[j] = y[j] * y[(j * 7 + 1) % 96] + 1.0f;
#pragma unroll
    for (int j = 0; j < 96; j++) x[j * 1024 + threadIdx.x] = y[j];
}

// An array on the stack: its index is computed.
extern "C" __global__ void stack_array(float* x, const int* at, int n) {
    float y[32];
    for (int j = 0; j < 32; j++) y[j] = x[j];
#pragma unroll 1
    for (int i = 0; i < n; i++) y[at[i] & 31] += 1.0f;
    for (int j = 0; j < 32; j++) x[j] = y[j];
}
