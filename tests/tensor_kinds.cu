// One kernel for each kind of tensor-core instruction, named after what it should be read as. Ours.
#include <cstdint>

#define WARP(NAME, TEXT)                                                                                              \
    extern "C" __global__ void NAME(const uint32_t* in, float* out) {                                                 \
        uint32_t a0 = in[0], a1 = in[1], a2 = in[2], a3 = in[3], b0 = in[4], b1 = in[5], c[4] = {};                   \
        asm volatile(TEXT : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                            \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                         \
        for (int i = 0; i < 4; i++) out[i] = c[i];                                                                    \
    }
#define ALL "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}"

WARP(HMMA_16x8x16_bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 " ALL ";")
WARP(HMMA_16x8x8_bf16, "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%8}, {%0,%1,%2,%3};")
WARP(HMMA_16x8x16_fp16, "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1};")
WARP(HMMA_16x8x8_tf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 " ALL ";")
WARP(HMMA_16x8x4_tf32, "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5}, {%8}, {%0,%1,%2,%3};")
WARP(IMMA_16x8x32_int8, "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 " ALL ";")
WARP(IMMA_16x8x16_int8, "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%8}, {%0,%1,%2,%3};")

extern "C" __global__ void DMMA_8x8x4_fp64(const double* in, double* out) {
    double a = in[0], b = in[1], c = 0, d = 0;
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+d"(c), "+d"(d) : "d"(a), "d"(b));
    out[0] = c, out[1] = d;
}

#if __CUDA_ARCH_FEAT_SM120_ALL
WARP(QMMA_16x8x32_fp8, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 " ALL ";")
WARP(QMMA_16x8x32_fp4_x_fp6, "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e2m1.e3m2.f32 " ALL ";")
WARP(OMMA_16x8x64_fp4, "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3 "
     ALL ", {%4}, {0,0}, {%8}, {0,0};")
#endif

#if __CUDA_ARCH_FEAT_SM90_ALL
#define GROUP(NAME, TEXT, SCALES)                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) NAME(uint64_t a, uint64_t b, float* out) {                      \
        uint32_t c[4] = {};                                                                                           \
        asm volatile("wgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned." TEXT                                  \
                     " {%0,%1,%2,%3}, %4, %5, " SCALES ";\nwgmma.commit_group.sync.aligned;\n"                        \
                     "wgmma.wait_group.sync.aligned 0;"                                                               \
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "l"(a), "l"(b));                              \
        for (int i = 0; i < 4; i++) out[i * 128 + threadIdx.x] = c[i];                                                \
    }
#define FLOATS(NAME, TEXT, SCALES)                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) NAME(uint64_t a, uint64_t b, float* out) {                      \
        float c[4] = {};                                                                                              \
        asm volatile("wgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned." TEXT                                  \
                     " {%0,%1,%2,%3}, %4, %5, " SCALES ";\nwgmma.commit_group.sync.aligned;\n"                        \
                     "wgmma.wait_group.sync.aligned 0;"                                                               \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "l"(a), "l"(b));                              \
        for (int i = 0; i < 4; i++) out[i * 128 + threadIdx.x] = c[i];                                                \
    }
FLOATS(HGMMA_64x8x16_bf16, "m64n8k16.f32.bf16.bf16", "1, 1, 1, 0, 0")
FLOATS(HGMMA_64x8x16_fp16, "m64n8k16.f32.f16.f16", "1, 1, 1, 0, 0")
FLOATS(HGMMA_64x8x8_tf32, "m64n8k8.f32.tf32.tf32", "1, 1, 1")
FLOATS(QGMMA_64x8x32_fp8, "m64n8k32.f32.e5m2.e4m3", "1, 1, 1")
GROUP(IGMMA_64x8x32_int8, "m64n8k32.s32.s8.u8", "1")
#endif

#if __CUDA_ARCH_FEAT_SM100_ALL
// Descriptors: PTX ISA 9.0, tables "Instruction descriptor format": N / 8 at bit 17, M / 16 at bit 24, or M / 128 at 27.
#define THREAD(NAME, GROUPS, KIND, DESCRIPTOR, SCALES)                                                                \
    extern "C" __global__ void NAME(uint64_t a, uint64_t b, uint32_t d) {                                             \
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, 1, 0;\ntcgen05.mma.cta_group::" #GROUPS ".kind::" KIND         \
                     " [%0], %1, %2, %3" SCALES ", p;\n}"                                                             \
                     :: "r"(d), "l"(a), "l"(b), "r"(DESCRIPTOR), "r"(d + 64), "r"(d + 96));                           \
    }
#define SCALED ", [%4], [%5]"
THREAD(UTCHMMA_128x256x16_bf16, 1, "f16", 256 / 8 << 17 | 128 / 16 << 24 | 1 << 4 | 1 << 7 | 1 << 10, "")
THREAD(UTCHMMA_256x64x16_fp16, 2, "f16", 64 / 8 << 17 | 256 / 16 << 24 | 1 << 4, "")
THREAD(UTCHMMA_64x128x8_tf32, 1, "tf32", 128 / 8 << 17 | 64 / 16 << 24 | 1 << 4 | 2 << 7 | 2 << 10, "")
THREAD(UTCQMMA_128x128x32_fp8, 1, "f8f6f4", 128 / 8 << 17 | 128 / 16 << 24 | 1 << 4 | 1 << 10, "")
THREAD(UTCQMMA_128x128x32_fp6_x_fp4, 1, "f8f6f4", 128 / 8 << 17 | 128 / 16 << 24 | 1 << 4 | 3 << 7 | 5 << 10, "")
THREAD(UTCIMMA_128x128x32_int8, 1, "i8", 128 / 8 << 17 | 128 / 16 << 24 | 2 << 4 | 1 << 7 | 1 << 10, "")
THREAD(UTCQMMA_128x256x32_fp8, 1, "mxf8f6f4.block_scale.scale_vec::1X", 256 / 8 << 17 | 1 << 23 | 128 / 128 << 27, SCALED)
THREAD(UTCOMMA_128x256x64_fp4, 1, "mxf4.block_scale.scale_vec::2X",
       256 / 8 << 17 | 1 << 23 | 128 / 128 << 27 | 1 << 7 | 1 << 10, SCALED)
extern "C" __global__ void UTCHMMA_unknown(uint64_t a, uint64_t b, uint32_t d, uint32_t descriptor) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, 1, 0;\ntcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}"
                 :: "r"(d), "l"(a), "l"(b), "r"(descriptor));
}
#endif
