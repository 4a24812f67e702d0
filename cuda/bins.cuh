// Key `bins`: instead of an instance for each 16x16 tile, one for each coarse bin that a splat touches, with a mask of
// the bin's patches (what one warp of the rasterizer owns). Three to five times fewer instances, and no global sort:
//
//   project_bins  a splat's record of 32 bytes and its instances; counts the bins', and the last block turns the counts
//                 into the starts of the lists
//   lists.cuh     fills the lists and sorts each
//
// A bin is BIN_COLUMNS patches wide and as high; a patch is 16x8 or 8x8 pixels: bins of 64 or 32 pixels, 32 or 16 patches.
#pragma once

namespace edgegs {

// What rasterize reads of a splat, one sector. With d = pixel - centre,
// log2(alpha) = log2_opacity + xx (d.x + lean d.y)^2 + yy d.y^2: both squares are negative, so that no digits are lost
// where a long thin splat's conic would cancel.
struct alignas(16) SplatRecord {
    float u, v; // pixels
    float lean; // of the ellipse's middle line: columns a row
    float xx, yy;
    uint32 opacity_red; // -log2(opacity) in steps of 1 / OPACITY_STEPS below red as FP16
    uint32 green_blue;  // FP16
    float depth;        // camera z
};

static_assert(sizeof(SplatRecord) == 32, "one sector");

// A splat in a bin.
struct alignas(16) BinInstance {
    uint32 depth; // bits of a positive float: they rise with it
    uint32 splat;
    uint32 mask; // of the bin's patches, row by row
    uint32 bin;
};

// Where a bin's list is, and where the bin: what blocks that take one begin with, in one load.
struct alignas(16) BinList {
    uint32 begin, end; // entries
    uint32 x, y;       // the first pixel
};

// What a block sorts: a list, or of a long one the share that falls to it of n_shares.
struct alignas(16) ListShare {
    uint32 begin, end; // the whole list's entries
    uint32 share, n_shares;
};

// A splat in its bin's list.
struct alignas(8) ListEntry {
    uint32 splat;
    uint32 mask;
};

DEVICE float log2_opacity(const SplatRecord &record) {
    return float(record.opacity_red & 0xffffu) * (-1.0f / OPACITY_STEPS);
}

// Where alpha can reach 1/255, on the screen, and the bins around it.
struct Ellipse {
    float u, v, lean, yy;
    float inverse_xx;  // of the negative: the squared half width a unit of reach
    float reach;       // how far log2(alpha) may fall from the centre
    float half_height; // pixels
    float turn;        // height over the centre at which it reaches farthest to the right
    uint32 depth;
    uint16 bin_x, bin_y; // the first one
    uint32 n_bins_x;
};

// The bins that hold pixel centres in [low, high].
DEVICE Span bins_with_centres(const FrameParams &p, float low, float high, uint32 n_pixels) {
    const float first = round_up(low - 0.5f), last = round_down(high - 0.5f);
    Span span = {0, 0};
    if (!(last >= first && last >= 0.0f && first < float(n_pixels))) return span;
    span.begin = uint32(first > 0.0f ? first : 0.0f) >> p.bin_shift;
    span.end = (uint32(last < float(n_pixels) ? last : float(n_pixels - 1)) >> p.bin_shift) + 1;
    return span;
}

// Fills the ellipse; the number of bins around it.
DEVICE uint32 bound_ellipse(const FrameParams &p, const SplatRecord &record, Ellipse &e) {
    e.u = record.u;
    e.v = record.v;
    e.lean = record.lean;
    e.yy = record.yy;
    e.inverse_xx = -reciprocal(record.xx);
    e.depth = float_bits(record.depth);
    e.reach = log2_opacity(record) + (LOG2_255 + REACH_SLACK);
    // the covariance again, over reach: variances are sums of positive terms
    const float variance_y = -reciprocal(record.yy), covariance = -record.lean * variance_y;
    const float variance_x = e.inverse_xx - record.lean * covariance;
    const float half_width = lesser(square_root_fast(e.reach * variance_x), 1e9f);
    e.half_height = lesser(square_root_fast(e.reach * variance_y), 1e9f);
    const float turn = covariance * reciprocal(variance_x) * half_width;
    e.turn = clamp(turn, -e.half_height, e.half_height);
    const Span x = bins_with_centres(p, e.u - half_width, e.u + half_width, p.width);
    const Span y = bins_with_centres(p, e.v - e.half_height, e.v + e.half_height, p.height);
    e.bin_x = uint16(x.begin);
    e.bin_y = uint16(y.begin);
    e.n_bins_x = x.end - x.begin;
    return (x.end - x.begin) * (y.end - y.begin);
}

// The patches of a bin that the ellipse touches: within each row of patches the exact extent of the slice. Columns are
// counted in patches; a column counts when it has a pixel centre between the slice's left and right end.
DEVICE uint32 patches_of_bin(const FrameParams &p, const Ellipse &e, uint32 bin_x, uint32 bin_y) {
    const float width = p.bin_shift == 6 ? 16.0f : 8.0f, per_patch = p.bin_shift == 6 ? 1.0f / 16.0f : 1.0f / 8.0f;
    const float n_rows = float((1u << p.bin_shift) / PATCH_HEIGHT);
    const float top = float(bin_y << p.bin_shift) + 0.5f - e.v; // of the first pixel centres, over the ellipse's
    const float middle = (e.u - 0.5f - float(bin_x << p.bin_shift)) * per_patch, lean = e.lean * per_patch;
    // rounded up and down by adding, and a hair farther out
    const float before = middle + (0.4999f - (width - 1.0f) * per_patch), behind = middle + 0.5001f;
    // half of a row's share of the ellipse, squared: chord + curve d^2, d over its centre
    const float inverse_xx = e.inverse_xx * (per_patch * per_patch);
    const float chord = e.reach * inverse_xx, curve = e.yy * inverse_xx;
    // the rows of patches within the box
    const float first = clamp(round_down((-e.half_height - top) * (1.0f / PATCH_HEIGHT)), 0.0f, n_rows);
    const float last = clamp(round_down((e.half_height - top) * (1.0f / PATCH_HEIGHT)), -1.0f, n_rows - 1.0f);
    uint32 mask = 0;
    for (float row = first; row <= last; row += 1.0f) {
        // heights over the ellipse's centre; it reaches farthest where they come nearest to the turn, or its opposite
        const float low = greater(top + row * PATCH_HEIGHT, -e.half_height);
        const float high = lesser(top + row * PATCH_HEIGHT + (PATCH_HEIGHT - 1.0f), e.half_height);
        const float at_left = clamp(-e.turn, low, high), at_right = clamp(e.turn, low, high);
        float left = before - lean * at_left - square_root_fast(greater(chord + curve * (at_left * at_left), 0.0f));
        float right = behind - lean * at_right + square_root_fast(greater(chord + curve * (at_right * at_right), 0.0f));
        left = clamp(left, 0.0f, float(BIN_COLUMNS));
        right = clamp(right, left, float(BIN_COLUMNS));
        // the nearest whole numbers, left in the low bits by a number with no room for fractions: bits of this row
        const float bits = 8388608.0f + row * BIN_COLUMNS;
        const uint32 begin = float_bits(left + bits) & 63u, end = float_bits(right + bits) & 63u;
        mask += low_bits(end) - low_bits(begin); // none of them are set yet
    }
    return mask;
}

// Fills the splat's record and ellipse; the number of bins around it, 0 for a splat that is not drawn.
template <typename Storage>
DEVICE uint32 project_record(const FrameParams &p, uint32 splat, SplatRecord &record, Ellipse &e) {
    Projection on_screen;
    if (!project_splat<Storage>(p, splat, on_screen)) return 0;
    // the clamp of alpha is made on the opacity: no pixel has to
    if (!(on_screen.opacity > 0.0f)) return 0; // NaN, too
    const float steps = log_2_fast(lesser(on_screen.opacity, ALPHA_MAX)) * -OPACITY_STEPS;
    if (!(steps < OPACITY_STEPS * LOG2_255)) return 0; // never reaches 1/255
    record.u = on_screen.u;
    record.v = on_screen.v;
    const float inverse_yy = reciprocal(on_screen.cov.yy);
    record.lean = -on_screen.cov.xy * inverse_yy;
    record.xx = (-0.5f * LOG2_E) * on_screen.cov.yy * on_screen.inverse_det;
    record.yy = (-0.5f * LOG2_E) * inverse_yy;
    record.opacity_red = uint32(steps + 0.5f);
    record.depth = on_screen.depth;
    const uint32 n_bins = bound_ellipse(p, record, e);
    if (n_bins == 0) return 0;
    const Vec3 colour = view_colour<Storage>(p, splat, on_screen.mean);
    record.opacity_red |= uint32(half_from_float(colour.x)) << 16;
    record.green_blue = half_from_float(colour.y) | uint32(half_from_float(colour.z)) << 16;
    return n_bins;
}

// The last block to finish turns the bins' counts into the starts of their lists, and clears them to count again.
template <int THREADS> DEVICE void lay_out_lists(const FrameParams &p, SumShared<uint32, THREADS> &shared) {
    constexpr int EACH = 4; // loads that wait together
    const uint32 n_bins = p.n_bins_x * p.n_bins_y;
    uint32 start = 0;
    for (uint32 base = 0; base < n_bins; base += THREADS * EACH) {
        uint32 counts[EACH], sum = 0, total;
        for (int i = 0; i < EACH; ++i) {
            const uint32 bin = base + thread_rank() * EACH + i;
            counts[i] = bin < n_bins ? observe(p.bin_counts + bin) : 0;
        }
        for (int i = 0; i < EACH; ++i) sum += counts[i];
        uint32 before = start + block_exclusive_sum<uint32, THREADS>(sum, total, shared);
        for (int i = 0; i < EACH; ++i) {
            const uint32 bin = base + thread_rank() * EACH + i;
            if (bin < n_bins) {
                p.bin_starts[bin] = before;
                p.bin_counts[bin] = 0;
            }
            before += counts[i];
        }
        start += total;
        block_sync(); // shared is written again
    }
    if (thread_rank() == 0) {
        p.bin_starts[n_bins] = start;
        *p.n_visible = observe(p.visible_ticket);
        *p.n_instances = observe(p.instance_ticket);
        *p.visible_ticket = 0;
        *p.block_ticket = 0;
        *p.step_ticket = 0;
    }
}

// Of numbers below 2^21: a picture has no more bins (edgegs/pipelines.py).
DEVICE uint32 divide(uint32 a, uint32 b) {
    const float exact = (small_to_float(a) + 0.5f) * reciprocal(small_to_float(b));
    return float_bits(exact - 0.5f + 12582912.0f) & 0x3fffffu;
}

struct BinsShared {
    static constexpr int THREADS = block_threads(BINS_THREADS);
    uint32 counts[MAX_BINS];
    Ellipse ellipses[THREADS];
    uint32 first_instances[THREADS];
    SumShared<uint64, THREADS> step;
    SumShared<uint32, THREADS> sums;
    uint64 ticket;
    uint32 next_step;
    uint32 is_last;
};

// One of the step's instances; `first` is the step's first splat.
DEVICE BinInstance instance_of(const FrameParams &p, const BinsShared &shared, uint32 first, uint32 index) {
    // whose it is: the last splat whose instances begin at or before it
    uint32 owner = 0;
    for (uint32 half = BinsShared::THREADS / 2; half > 0; half /= 2)
        if (shared.first_instances[owner + half] <= index) owner += half;
    const Ellipse e = shared.ellipses[owner];
    index -= shared.first_instances[owner];
    const uint32 row = divide(index, e.n_bins_x), x = e.bin_x + (index - row * e.n_bins_x), y = e.bin_y + row;
    return {e.depth, first + owner, patches_of_bin(p, e, x, y), y * p.n_bins_x + x};
}

// The splats from `begin` on, one a thread (in host-fast: one after the other). With `waits` it is the block's first step,
// whose splats are projected before waiting for the last frame.
template <typename Storage>
DEVICE void project_step(const FrameParams &p, BinsShared &shared, uint32 *counts, uint32 begin, bool waits) {
    constexpr int THREADS = BinsShared::THREADS;
    const uint32 end = p.n_splats - begin < p.bins_step ? p.n_splats : begin + p.bins_step;
    for (uint32 first = begin; first < end; first += THREADS) {
        const uint32 splat = first + thread_rank();
        SplatRecord record;
        uint32 n_mine = 0;
        if (splat < end) n_mine = project_record<Storage>(p, splat, record, shared.ellipses[thread_rank()]);
        if (waits) wait_for_previous(); // the last frame's raster reads the records
        if (n_mine > 0) p.splat_records[splat] = record;
        uint64 step_total; // visible splats above 32 bits of instances
        const uint64 own = uint64(n_mine > 0) << 32 | n_mine;
        shared.first_instances[thread_rank()] = uint32(block_exclusive_sum<uint64, THREADS>(own, step_total, shared.step));
        const uint32 n_step = uint32(step_total);
        uint64 ticket = 0;
        uint32 next_step = 0;
        if (thread_rank() == 0) {
            ticket = fetch_add(p.instance_ticket, uint64(n_step));
            add_to(p.visible_ticket, step_total >> 32);
            if (first == begin) next_step = fetch_add(p.step_ticket, 1u) + n_blocks();
        }
        block_sync();
        // the first instance of each thread is worked out while the tickets are on their way
        BinInstance instance = {};
        if (uint32(thread_rank()) < n_step) instance = instance_of(p, shared, first, thread_rank());
        if (thread_rank() == 0) {
            shared.ticket = ticket;
            if (first == begin) shared.next_step = next_step;
        }
        block_sync();
        ticket = shared.ticket;
        for (uint32 mine = thread_rank(); mine < n_step;) {
            // counting goes on past the end: the renderer grows the buffers and draws the frame again
            if (ticket + mine < p.instance_capacity) {
                p.bin_instances[ticket + mine] = instance;
                if (instance.mask != 0) fetch_add(counts + instance.bin, 1u);
            }
            mine += THREADS;
            if (mine < n_step) instance = instance_of(p, shared, first, mine);
        }
        block_sync(); // shared is written again
    }
}

// A block takes a step of splats at a time (in a small scene fewer than it has threads, so that every multiprocessor has
// some), then its threads share out the bins around all of them: however large a splat, no thread waits for another.
template <typename Storage> DEVICE void project_bins(const FrameParams &p) {
    constexpr int THREADS = BinsShared::THREADS;
    SHARED(BinsShared, shared);
    let_next_begin();
    const uint32 n_bins = p.n_bins_x * p.n_bins_y;
    uint32 *counts = n_bins <= MAX_BINS ? shared.counts : p.bin_counts;
    if (counts == shared.counts)
        for (uint32 bin = thread_rank(); bin < n_bins; bin += THREADS) counts[bin] = 0;

    // a block that is done takes the next step: they are not equally much work
    const uint32 n_steps = p.n_splats / p.bins_step + (p.n_splats % p.bins_step != 0);
    for (uint32 step = block_rank(); step < n_steps; step = shared.next_step)
        project_step<Storage>(p, shared, counts, step * p.bins_step, step == block_rank());
    if (block_rank() >= n_steps) wait_for_previous();
    if (counts == shared.counts) {
        for (uint32 bin = thread_rank(); bin < n_bins; bin += THREADS)
            if (counts[bin] > 0) fetch_add(p.bin_counts + bin, counts[bin]);
    }
    memory_fence();
    block_sync();
    if (thread_rank() == 0) shared.is_last = take_ticket(p.block_ticket) == n_blocks() - 1;
    block_sync();
    if (shared.is_last) lay_out_lists<THREADS>(p, shared.sums);
}

} // namespace edgegs
