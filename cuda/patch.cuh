// Stage rasterize of key `bins`: a warp owns a patch of 16x8 or 8x8 pixels and walks its bin's list. It picks the splats
// whose mask has its patch, 32 entries a step, and when it has 32 splats stages them: each lane folds one into a
// polynomial about the patch's middle. No block barrier. What the loop leaves out, pixel by pixel:
//   the 1/255 cut    2^x is made FLUSH_BIAS too small, so that an alpha below 1/255 is denormal and flushed to 0;
//                    the transmittance is kept 2^FLUSH_BIAS too large, so that their product is the weight
//   the 0.99 clamp   made on the opacity (make_record)
//   the 1e-4 stop    the patch ends when none of its pixels lets more than PATCH_OPAQUE through, which is asked after
//                    every STOP_EVERY splats; what lies behind is taken to have the colour in front (cover_rest)
#pragma once

namespace edgegs {

struct alignas(16) PatchSplat {
    float xx, xy, yy, x, y, one; // log2(alpha) - FLUSH_BIAS = xx x^2 + xy x y + yy y^2 + x x + y y + one
    float r, g, b;
};

// About (origin_x, origin_y), a point near where the splat is looked at.
DEVICE PatchSplat fold_record(const SplatRecord &record, float origin_x, float origin_y) {
    const float du = origin_x - record.u, dv = origin_y - record.v;
    const float across = du + record.lean * dv; // from the ellipse's middle line
    PatchSplat s;
    s.xx = record.xx;
    s.xy = 2.0f * record.xx * record.lean;
    s.yy = record.xx * record.lean * record.lean + record.yy;
    s.x = 2.0f * record.xx * across;
    s.y = s.x * record.lean + 2.0f * record.yy * dv;
    s.one = record.xx * across * across + record.yy * dv * dv + (log2_opacity(record) - FLUSH_BIAS);
    s.r = float_from_half(uint16(record.opacity_red >> 16));
    s.g = float_from_half(uint16(record.green_blue));
    s.b = float_from_half(uint16(record.green_blue >> 16));
    return s;
}

struct PatchPixels {
    Pixels transmittance; // times 2^FLUSH_BIAS
    Pixels r, g, b;
};

DEVICE void blend_flushed(PatchPixels &pixels, Pixels log2_alpha, const PatchSplat &s) {
    const Pixels weight = exp2_flushed(log2_alpha) * pixels.transmittance;
    pixels.transmittance = multiply_add(weight, spread(-FLUSH_SCALE), pixels.transmittance);
    pixels.r = multiply_add(weight, spread(s.r), pixels.r);
    pixels.g = multiply_add(weight, spread(s.g), pixels.g);
    pixels.b = multiply_add(weight, spread(s.b), pixels.b);
}

// Fills what a finished patch lets through, at most PATCH_OPAQUE, with the pixel's own colour: what lies behind was not
// drawn, and is nearer to that, as a rule, than to the background.
template <typename Value> DEVICE void cover_rest(Value &r, Value &g, Value &b, Value &transmittance) {
    const Value whole = 1.0f + (transmittance + transmittance * transmittance); // 1 / (1 - transmittance), to 2^-24
    r = r * whole;
    g = g * whole;
    b = b * whole;
    transmittance = transmittance * 0.0f;
}

DEVICE void write_patch(const FrameParams &p, uint32 x, uint32 y, const PatchPixels &pixels, bool finished) {
    PixelState state;
    state.transmittance = pixels.transmittance * spread(1.0f / FLUSH_SCALE);
    state.r = pixels.r;
    state.g = pixels.g;
    state.b = pixels.b;
    if (finished) cover_rest(state.r, state.g, state.b, state.transmittance);
    write_pixels(p, x, y, state);
}

// Queues the next splats that touch the patch, in order, until there are enough for a batch; a few rows of
// the list at a time, so that their loads wait together.
DEVICE void pick_splats(const FrameParams &p, uint32 *queue, uint32 bit, uint32 &next, uint32 end, uint32 &n_queued,
                        uint32 &n_walked) {
    constexpr uint32 WALK = WALK_ROWS * WARP_WIDTH; // entries that are looked at together
    while (n_queued < PATCH_BATCH && next < end) {
        ListEntry entries[WALK_ROWS];
        for (int row = 0; row < WALK_ROWS; ++row) {
            const uint32 place = next + row * WARP_WIDTH + lane_rank();
            entries[row].mask = 0;
            if (place < end) entries[row] = p.bin_lists[place];
        }
        for (int row = 0; row < WALK_ROWS; ++row) {
            const bool picks = entries[row].mask >> bit & 1u;
            const uint32 picking = warp_ballot(picks);
            if (picks) queue[n_queued + count_bits(picking & ((1u << lane_rank()) - 1u))] = entries[row].splat;
            n_queued += count_bits(picking);
        }
        n_walked += end - next < WALK ? end - next : WALK;
        next += WALK;
    }
    warp_sync();
}

// A patch of the picture: its bin's list, the masks' bit, its first pixel.
struct Patch {
    uint32 begin, end, bit, x, y;
};

template <int PATCH_WIDTH> DEVICE Patch patch_of(const FrameParams &p, uint32 index) {
    constexpr uint32 PATCHES = BIN_COLUMNS * (BIN_COLUMNS * PATCH_WIDTH / PATCH_HEIGHT); // of one bin
    const BinList list = p.bin_order[index / PATCHES];
    const uint32 bit = index % PATCHES;
    const uint32 x = list.x + bit % BIN_COLUMNS * PATCH_WIDTH, y = list.y + bit / BIN_COLUMNS * PATCH_HEIGHT;
    return {list.begin, list.end, bit, x, y};
}

// With COUNTS it draws nothing, and adds up what drawing took: see FrameParams.patch_counts.
template <int PATCH_WIDTH, bool COUNTS>
DEVICE void draw_patch(const FrameParams &p, uint32 index, PatchSplat *staged, uint32 *queue) {
    constexpr int PACKS_PER_ROW = PATCH_WIDTH / PACK_PIXELS;
    constexpr int N_ROW_PAIRS = PATCH_HEIGHT / 2; // each: a row above the middle and its mirror below
    constexpr int LANES_PER_ROW = PACKS_PER_ROW < WARP_WIDTH ? PACKS_PER_ROW : WARP_WIDTH;
    constexpr int N_PACKS = PACKS_PER_ROW / LANES_PER_ROW;            // side by side, of one thread
    constexpr int N_PAIRS = N_ROW_PAIRS * LANES_PER_ROW / WARP_WIDTH; // of rows, of one thread
    static_assert(N_PAIRS * WARP_WIDTH == N_ROW_PAIRS * LANES_PER_ROW, "the warp fills the patch");
    static_assert(PATCH_BATCH % STOP_EVERY == 0 && PATCH_BATCH % WARP_WIDTH == 0, "whole steps");
    const Patch own = patch_of<PATCH_WIDTH>(p, index);
    const uint32 patch_x = own.x, patch_y = own.y;
    if (patch_x >= p.width || patch_y >= p.height) return; // the whole warp
    const float origin_x = float(patch_x + PATCH_WIDTH / 2), origin_y = float(patch_y + PATCH_HEIGHT / 2);
    const int first_pack = lane_rank() % LANES_PER_ROW, first_pair = lane_rank() / LANES_PER_ROW * N_PAIRS;

    PatchPixels above[N_PACKS][N_PAIRS], below[N_PACKS][N_PAIRS];
    for (int i = 0; i < N_PACKS; ++i) {
        const uint32 x = patch_x + (first_pack + i * LANES_PER_ROW) * PACK_PIXELS;
        // pixels outside the picture are finished from the start
        const Pixels inside = select(first_pixels(float(x)) < spread(float(p.width)), spread(FLUSH_SCALE), spread(0.0f));
        for (int j = 0; j < N_PAIRS; ++j) {
            const uint32 row = first_pair + j;
            const bool has_above = patch_y + N_ROW_PAIRS - 1 - row < p.height, has_below = patch_y + N_ROW_PAIRS + row < p.height;
            above[i][j] = {has_above ? inside : spread(0.0f), spread(0.0f), spread(0.0f), spread(0.0f)};
            below[i][j] = {has_below ? inside : spread(0.0f), spread(0.0f), spread(0.0f), spread(0.0f)};
        }
    }

    uint32 n_queued = 0, n_walked = 0, n_picked = 0, n_blended = 0;
    bool alive = true;
    for (uint32 next = own.begin; alive && (next < own.end || n_queued > 0);) {
        pick_splats(p, queue, own.bit, next, own.end, n_queued, n_walked);
        // stage a batch; what is over moves to the front. Behind the last splat stand some that draw nothing
        const uint32 n_staged = n_queued < PATCH_BATCH ? n_queued : PATCH_BATCH;
        for (uint32 k = lane_rank(); k < PATCH_BATCH; k += WARP_WIDTH) {
            PatchSplat s = {};
            s.one = 2.0f * -FLUSH_BIAS; // 2^-236 is 0
            if (k < n_staged) s = fold_record(p.splat_records[queue[k]], origin_x, origin_y);
            staged[k] = s;
        }
        if (COUNTS) n_picked += n_staged;
        n_queued -= n_staged;
        for (uint32 k = lane_rank(); k < n_queued; k += WARP_WIDTH) queue[k] = queue[n_staged + k];
        warp_sync();

        for (uint32 first = 0; first < n_staged && alive; first += STOP_EVERY) {
            if (COUNTS) n_blended += STOP_EVERY;
            for (uint32 k = 0; k < STOP_EVERY; ++k) {
                const PatchSplat s = staged[first + k];
                for (int i = 0; i < N_PACKS; ++i) {
                    const int pack = first_pack + i * LANES_PER_ROW;
                    const Pixels x = first_pixels(float(pack * PACK_PIXELS - PATCH_WIDTH / 2) + 0.5f);
                    const Pixels flat = multiply_add(multiply_add(spread(s.xx), x, spread(s.x)), x, spread(s.one));
                    const Pixels slope = multiply_add(spread(s.xy), x, spread(s.y));
                    for (int j = 0; j < N_PAIRS; ++j) {
                        const float y = float(first_pair + j) + 0.5f;
                        const Pixels middle = multiply_add(spread(s.yy), spread(y * y), flat);
                        blend_flushed(above[i][j], multiply_add(slope, spread(-y), middle), s);
                        blend_flushed(below[i][j], multiply_add(slope, spread(y), middle), s);
                    }
                }
            }
            Pixels most = above[0][0].transmittance; // of any pixel
            for (int i = 0; i < N_PACKS; ++i)
                for (int j = 0; j < N_PAIRS; ++j)
                    most = larger(most, larger(above[i][j].transmittance, below[i][j].transmittance));
            alive = warp_ballot(any_pixel(most >= spread(PATCH_OPAQUE * FLUSH_SCALE))) != 0;
        }
    }

    if (COUNTS && lane_rank() == 0) {
        add_to(p.patch_counts + 0, uint64(n_walked));
        add_to(p.patch_counts + 1, uint64(n_picked));
        add_to(p.patch_counts + 2, uint64(n_blended));
    }
    for (int i = 0; i < N_PACKS && !COUNTS; ++i) {
        const uint32 x = patch_x + (first_pack + i * LANES_PER_ROW) * PACK_PIXELS;
        for (int j = 0; j < N_PAIRS; ++j) {
            write_patch(p, x, patch_y + N_ROW_PAIRS - 1 - (first_pair + j), above[i][j], !alive);
            write_patch(p, x, patch_y + N_ROW_PAIRS + (first_pair + j), below[i][j], !alive);
        }
    }
}

template <int PATCH_WIDTH, bool COUNTS = false> DEVICE void rasterize_patch(const FrameParams &p) {
    constexpr int WARPS = block_threads(PATCH_THREADS) / WARP_WIDTH;
    constexpr uint32 PATCHES = BIN_COLUMNS * (BIN_COLUMNS * PATCH_WIDTH / PATCH_HEIGHT); // of one bin
    struct Shared {
        PatchSplat splats[WARPS][PATCH_BATCH];
        uint32 queues[WARPS][PATCH_BATCH + WALK_ROWS * WARP_WIDTH];
    };
    SHARED(Shared, shared);
    let_next_begin();
    wait_for_previous();
    const uint32 n_patches = p.n_bins_x * p.n_bins_y * PATCHES;
    for (uint32 patch = block_rank() * WARPS + warp_rank(); patch < n_patches; patch += n_blocks() * WARPS)
        draw_patch<PATCH_WIDTH, COUNTS>(p, patch, shared.splats[warp_rank()], shared.queues[warp_rank()]);
}

} // namespace edgegs
