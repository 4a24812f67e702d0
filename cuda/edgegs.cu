// The kernels' contents page: the stages in the order in which a frame runs them, then one line an entry.
// Entry names: stage, then the axes of the variant that change it (README.md has the table).
#include "platform.cuh"

#include "constants.h"
#include "params.h"

#include "collectives.cuh"

#include "project.cuh"
#include "duplicate.cuh"
#include "sort.cuh"
#include "ranges.cuh"
#include "rasterize.cuh"

using namespace edgegs;

KERNEL(project_fp32_radius, FrameParams, PROJECT_THREADS) { project<StorageFp32, CullRadius>(p); }

KERNEL(duplicate_ref64, FrameParams, DUPLICATE_THREADS) { duplicate<KeyRef64>(p); }

KERNEL(sort_count_64, SortParams, SORT_THREADS) { sort_count<uint64>(p); }
KERNEL(sort_scan_rows, SortParams, SORT_THREADS) { sort_scan(p); }
KERNEL(sort_scatter_64, SortParams, SORT_THREADS) { sort_scatter<uint64>(p); }

KERNEL(ranges_ref64, FrameParams, RANGES_THREADS) { ranges<KeyRef64>(p); }

KERNEL(rasterize_block_exact, FrameParams, RASTERIZE_THREADS) { rasterize_block<ExpExact>(p); }
