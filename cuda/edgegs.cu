// The kernels' contents page: the stages in the order in which a frame runs them, then one line an entry.
// Entry names: stage, then the axes of the variant that change it (README.md has the table).
#include "platform.cuh"

#include "constants.h"
#include "params.h"

#include "collectives.cuh"
#include "cull.cuh"

#include "project.cuh"
#include "duplicate.cuh"
#include "fused.cuh"
#include "bins.cuh"
#include "lists.cuh"
#include "sort.cuh"
#include "ranges.cuh"
#include "rasterize.cuh"
#include "patch.cuh"
#ifdef HAS_TENSOR_CORES
#include "tensor.cuh"
#endif
#include "score.cuh"

#include "ceilings.cuh"

using namespace edgegs;

KERNEL(project_fp32_radius, FrameParams, PROJECT_THREADS) { project<StorageFp32, CullRadius>(p); }
KERNEL(project_fp32_tight, FrameParams, PROJECT_THREADS) { project<StorageFp32, CullTight>(p); }
KERNEL(project_packed_radius, FrameParams, PROJECT_THREADS) { project<StoragePacked, CullRadius>(p); }
KERNEL(project_packed_tight, FrameParams, PROJECT_THREADS) { project<StoragePacked, CullTight>(p); }

KERNEL(duplicate_ref64_radius, FrameParams, DUPLICATE_THREADS) { duplicate<KeyRef64, CullRadius>(p); }
KERNEL(duplicate_ref64_tight, FrameParams, DUPLICATE_THREADS) { duplicate<KeyRef64, CullTight>(p); }

// packed32: projects and duplicates at once
KERNEL(project_packed32_fp32_radius, FrameParams, PROJECT_THREADS) {
    project_duplicate<KeyPacked32, StorageFp32, CullRadius>(p);
}
KERNEL(project_packed32_fp32_tight, FrameParams, PROJECT_THREADS) {
    project_duplicate<KeyPacked32, StorageFp32, CullTight>(p);
}
KERNEL(project_packed32_packed_radius, FrameParams, PROJECT_THREADS) {
    project_duplicate<KeyPacked32, StoragePacked, CullRadius>(p);
}
KERNEL(project_packed32_packed_tight, FrameParams, PROJECT_THREADS) {
    project_duplicate<KeyPacked32, StoragePacked, CullTight>(p);
}

// split: visible splats by depth, then their instances by tile
KERNEL(sort_compact, FrameParams, DUPLICATE_THREADS) { compact(p); }
KERNEL(duplicate_count, FrameParams, DUPLICATE_THREADS) { count_ordered(p); }
KERNEL(duplicate_split_radius, FrameParams, DUPLICATE_THREADS) { duplicate_ordered<KeySplit, CullRadius>(p); }
KERNEL(duplicate_split_tight, FrameParams, DUPLICATE_THREADS) { duplicate_ordered<KeySplit, CullTight>(p); }

// bins: lists of coarse bins instead of instances of tiles
KERNEL(project_bins_fp32, FrameParams, BINS_THREADS) { project_bins<StorageFp32>(p); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700 // shared memory has room for three
#define PROJECTING_BLOCKS 3
#else
#define PROJECTING_BLOCKS 4
#endif
DENSE_KERNEL(project_bins_packed, FrameParams, BINS_THREADS, PROJECTING_BLOCKS) { project_bins<StoragePacked>(p); }
DENSE_KERNEL(lists_fill, FrameParams, FILL_THREADS, 2) { fill_lists(p); }
DENSE_KERNEL(lists_sort, FrameParams, LIST_THREADS, 4) { sort_lists<LIST_THREADS>(p); }
DENSE_KERNEL(lists_sort_few, FrameParams, FEW_LISTS_THREADS, 2) { sort_lists<FEW_LISTS_THREADS>(p); }
KERNEL(rasterize_patch8_fast, FrameParams, PATCH_THREADS) { rasterize_patch<8>(p); }
DENSE_KERNEL(rasterize_patch16_fast, FrameParams, PATCH_THREADS, 8) { rasterize_patch<16>(p); }
#ifdef HAS_TENSOR_CORES
DENSE_KERNEL(rasterize_tensor8_fast, FrameParams, PATCH_THREADS, 9) { rasterize_tensor<8>(p); }
DENSE_KERNEL(rasterize_tensor16_fast, FrameParams, PATCH_THREADS, 7) { rasterize_tensor<16>(p); }
#endif
KERNEL(count_patch8, FrameParams, PATCH_THREADS) { rasterize_patch<8, true>(p); }
KERNEL(count_patch16, FrameParams, PATCH_THREADS) { rasterize_patch<16, true>(p); }

KERNEL(sort_count_16, SortParams, SORT_THREADS) { sort_count<uint16>(p); }
KERNEL(sort_count_32, SortParams, SORT_THREADS) { sort_count<uint32>(p); }
KERNEL(sort_count_64, SortParams, SORT_THREADS) { sort_count<uint64>(p); }
KERNEL(sort_scan_rows, SortParams, SORT_THREADS) { sort_scan(p); }
KERNEL(sort_scatter_16, SortParams, SORT_THREADS) { sort_scatter<uint16>(p); }
KERNEL(sort_scatter_32, SortParams, SORT_THREADS) { sort_scatter<uint32>(p); }
KERNEL(sort_scatter_64, SortParams, SORT_THREADS) { sort_scatter<uint64>(p); }

KERNEL(ranges_ref64, FrameParams, RANGES_THREADS) { ranges<KeyRef64>(p); }
KERNEL(ranges_packed32, FrameParams, RANGES_THREADS) { ranges<KeyPacked32>(p); }
KERNEL(ranges_split, FrameParams, RANGES_THREADS) { ranges<KeySplit>(p); }

KERNEL(rasterize_block_exact, FrameParams, RASTERIZE_THREADS) { rasterize_block<ExpExact>(p); }
KERNEL(rasterize_block_fast, FrameParams, RASTERIZE_THREADS) { rasterize_block<ExpFast>(p); }
KERNEL(rasterize_block_bits, FrameParams, RASTERIZE_THREADS) { rasterize_block<ExpBits>(p); }
KERNEL(rasterize_dual_exact, FrameParams, DUAL_THREADS) { rasterize_dual<ExpExact>(p); }
KERNEL(rasterize_dual_fast, FrameParams, DUAL_THREADS) { rasterize_dual<ExpFast>(p); }
KERNEL(rasterize_dual_bits, FrameParams, DUAL_THREADS) { rasterize_dual<ExpBits>(p); }

KERNEL(score_exact, FrameParams, RASTERIZE_THREADS) { score(p); }

// what the device can do at most
KERNEL(ceiling_copy, CeilingParams, CEILING_THREADS) { copy_words(p); }
KERNEL(ceiling_multiply_add, CeilingParams, CEILING_THREADS) { run_chains<StepMultiplyAdd>(p); }
KERNEL(ceiling_exp2, CeilingParams, CEILING_THREADS) { run_chains<StepExp2>(p); }
KERNEL(ceiling_shared, CeilingParams, CEILING_THREADS) { load_shared(p); }
