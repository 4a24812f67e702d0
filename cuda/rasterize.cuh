// Stage 5, rasterize: the splats of a tile's list are composited front to back into its pixels (Kerbl et al. 2023, eq. 3).
// Three rasters, one arithmetic:
//   block  the original's mapping: a block a tile, a thread a pixel, splats staged in shared memory by the block
//   dual   after RoofGS: a thread owns two vertical pixels; a splat's power is folded into one polynomial of the
//          pixel's place in the tile, and log2(opacity) into that, so that alpha = 2^polynomial
//   warp   a warp owns a 16x8 patch, four vertical pixels a thread, and stages splats for itself: no block barrier;
//          a splat that cannot reach the patch is left out while staging
// In host-fast one thread owns the tile (or patch), as rows of PACK_PIXELS pixels.
#pragma once

namespace edgegs {

static_assert(TILE_PIXELS == TILE_SIZE * TILE_SIZE, "a tile is square");
static_assert(TILE_SIZE % PATCH_HEIGHT == 0 && PATCH_HEIGHT % 4 == 0, "patches of four-pixel columns fill a tile");

// --- exponential: e^x and 2^x for x <= 0 (and a little above) ---
struct ExpExact {
    static DEVICE Pixels exp(Pixels x) { return exp_exact(x); }
    static DEVICE Pixels exp2(Pixels x) { return exp2_exact(x); }
};
// The hardware's 2^x (on the host a short polynomial), without the standard function's range handling.
struct ExpFast {
    static DEVICE Pixels exp(Pixels x) { return exp2_fast(x * spread(LOG2_E)); }
    static DEVICE Pixels exp2(Pixels x) { return exp2_fast(x); }
};
// Schraudolph 1999: 2^x by writing x into a float's exponent; relative error within 0.03 (tests prove it).
struct ExpBits {
    static DEVICE Pixels exp(Pixels x) { return exp2(x * spread(LOG2_E)); }
    static DEVICE Pixels exp2(Pixels x) {
        const Pixels steps = multiply_add(x, spread(BITS_SCALE), spread(BITS_SCALE * BITS_BIAS));
        return pixels_from_step(select(steps < spread(0.0f), spread(0.0f), steps));
    }
};

// --- one pack of pixels ---
struct PixelState {
    Pixels transmittance, r, g, b;
    PixelMask alive;
};

struct Colour {
    float r, g, b;
};

DEVICE PixelState fresh_pixels(const FrameParams &p, uint32 x, uint32 y) {
    PixelState state;
    state.transmittance = spread(1.0f);
    state.r = state.g = state.b = spread(0.0f);
    // pixels outside the picture are finished from the start
    state.alive = y < p.height ? first_pixels(float(x)) < spread(float(p.width)) : no_pixels();
    return state;
}

// Composites alpha where `reached`; a pixel stops before its transmittance would fall under the minimum. Returns the
// weight of the colour.
DEVICE Pixels composite(PixelState &state, Pixels alpha, PixelMask reached, const Colour &colour) {
    PixelMask drawn = state.alive & reached & (alpha >= spread(ALPHA_MIN));
    const Pixels transmittance = state.transmittance * (spread(1.0f) - alpha);
    const PixelMask stopped = drawn & (transmittance < spread(TRANSMITTANCE_MIN));
    state.alive = state.alive & !stopped;
    drawn = drawn & !stopped;
    const Pixels weight = select(drawn, alpha * state.transmittance, spread(0.0f));
    state.r = multiply_add(weight, spread(colour.r), state.r);
    state.g = multiply_add(weight, spread(colour.g), state.g);
    state.b = multiply_add(weight, spread(colour.b), state.b);
    state.transmittance = select(drawn, transmittance, state.transmittance);
    return weight;
}

DEVICE uint8 to_byte(float value) { return uint8(clamp(value, 0.0f, 1.0f) * 255.0f + 0.5f); }

DEVICE void write_pixel(const FrameParams &p, uint32 x, uint32 y, float r, float g, float b, float transmittance) {
    const uint64 pixel = uint64(y) * p.width + x;
    if (p.pixel_backdrop) {
        const float step = transmittance * (1.0f / 255.0f);
        b += step * float(p.pixel_backdrop[3 * pixel + 0]);
        g += step * float(p.pixel_backdrop[3 * pixel + 1]);
        r += step * float(p.pixel_backdrop[3 * pixel + 2]);
    } else {
        r += transmittance * p.background[0];
        g += transmittance * p.background[1];
        b += transmittance * p.background[2];
    }
    p.pixel_bgr[3 * pixel + 0] = to_byte(b);
    p.pixel_bgr[3 * pixel + 1] = to_byte(g);
    p.pixel_bgr[3 * pixel + 2] = to_byte(r);
    if (p.pixel_rgb) {
        p.pixel_rgb[3 * pixel + 0] = r;
        p.pixel_rgb[3 * pixel + 1] = g;
        p.pixel_rgb[3 * pixel + 2] = b;
    }
    if (p.pixel_transmittance) p.pixel_transmittance[pixel] = transmittance;
}

DEVICE void write_pixels(const FrameParams &p, uint32 x, uint32 y, const PixelState &state) {
    for (int j = 0; j < PACK_PIXELS; ++j)
        if (x + j < p.width && y < p.height)
            write_pixel(p, x + j, y, pixel_of(state.r, j), pixel_of(state.g, j), pixel_of(state.b, j),
                        pixel_of(state.transmittance, j));
}

DEVICE Colour colour_of(const FrameParams &p, uint32 splat) {
    const float *colour = p.splat_colors + 3 * uint64(splat);
    return {colour[0], colour[1], colour[2]};
}

// --- block ---
struct StagedSplat {
    float u, v;       // pixels
    float xx, xy, yy; // conic, the halves folded in: power = xx dx^2 + xy dx dy + yy dy^2
    float opacity;
    Colour colour;
};

DEVICE StagedSplat stage_splat(const FrameParams &p, uint32 splat) {
    const float *conic = p.splat_conics + 4 * uint64(splat);
    StagedSplat s;
    s.u = p.splat_means2d[2 * uint64(splat) + 0];
    s.v = p.splat_means2d[2 * uint64(splat) + 1];
    s.xx = -0.5f * conic[0];
    s.xy = -conic[1];
    s.yy = -0.5f * conic[2];
    s.opacity = conic[3];
    s.colour = colour_of(p, splat);
    return s;
}

// x, y: centres of the pack's first pixel. Returns the weight of the colour.
template <typename Exponential> DEVICE Pixels blend(PixelState &state, const StagedSplat &s, Pixels x, float y) {
    const Pixels dx = x - spread(s.u);
    const float dy = y - s.v;
    const Pixels power = multiply_add(multiply_add(spread(s.xx), dx, spread(s.xy * dy)), dx, spread(s.yy * dy * dy));
    if (!any_pixel(power >= spread(POWER_MIN))) return spread(0.0f);
    const Pixels alpha = smaller(spread(ALPHA_MAX), spread(s.opacity) * Exponential::exp(power));
    return composite(state, alpha, power <= spread(0.0f), s.colour);
}

template <typename Exponential> DEVICE void rasterize_block(const FrameParams &p) {
    constexpr int THREADS = block_threads(RASTERIZE_THREADS);
    constexpr int PACKS_PER_ROW = TILE_SIZE / PACK_PIXELS;
    constexpr int N_PACKS = TILE_PIXELS / (PACK_PIXELS * THREADS); // of one thread
    struct Shared {
        StagedSplat splats[RASTERIZE_BATCH];
    };
    SHARED(Shared, shared);

    const uint32 tile = block_rank();
    const uint32 tile_x = tile % p.n_tiles_x * TILE_SIZE;
    const uint32 tile_y = tile / p.n_tiles_x * TILE_SIZE;
    const uint32 begin = p.tile_starts[tile], end = p.tile_starts[tile + 1];

    PixelState states[N_PACKS];
    for (int i = 0; i < N_PACKS; ++i) {
        const int pack = thread_rank() + i * THREADS;
        states[i] = fresh_pixels(p, tile_x + pack % PACKS_PER_ROW * PACK_PIXELS, tile_y + pack / PACKS_PER_ROW);
    }

    for (uint32 batch = begin; batch < end; batch += RASTERIZE_BATCH) {
        bool finished = true;
        for (int i = 0; i < N_PACKS; ++i) finished = finished && !any_pixel(states[i].alive);
        if (block_all(finished)) break; // also keeps the staging below behind the blending above

        const uint32 n_staged = end - batch < RASTERIZE_BATCH ? end - batch : RASTERIZE_BATCH;
        for (uint32 k = thread_rank(); k < n_staged; k += THREADS)
            shared.splats[k] = stage_splat(p, p.instance_splats[batch + k]);
        block_sync();

        for (uint32 k = 0; k < n_staged; ++k) {
            const StagedSplat s = shared.splats[k];
            for (int i = 0; i < N_PACKS; ++i) {
                const int pack = thread_rank() + i * THREADS;
                const float x = float(tile_x + pack % PACKS_PER_ROW * PACK_PIXELS) + 0.5f;
                const float y = float(tile_y + pack / PACKS_PER_ROW) + 0.5f;
                if (any_pixel(states[i].alive)) blend<Exponential>(states[i], s, first_pixels(x), y);
            }
        }
    }

    for (int i = 0; i < N_PACKS; ++i) {
        const int pack = thread_rank() + i * THREADS;
        write_pixels(p, tile_x + pack % PACKS_PER_ROW * PACK_PIXELS, tile_y + pack / PACKS_PER_ROW, states[i]);
    }
}

// --- folded: log2(alpha) as a polynomial of the place (x, y) relative to an origin near the pixels ---
// (with absolute pixel coordinates the sums at 4K would lose the digits that matter)
struct FoldedSplat {
    float xx, xy, yy, x, y, one; // log2(alpha) = xx x^2 + xy x y + yy y^2 + x x + y y + one
    Colour colour;
};

DEVICE FoldedSplat fold_splat(const FrameParams &p, uint32 splat, float origin_x, float origin_y) {
    const float *conic = p.splat_conics + 4 * uint64(splat);
    const float du = p.splat_means2d[2 * uint64(splat) + 0] - origin_x;
    const float dv = p.splat_means2d[2 * uint64(splat) + 1] - origin_y;
    FoldedSplat f;
    f.xx = (-0.5f * LOG2_E) * conic[0];
    f.xy = -LOG2_E * conic[1];
    f.yy = (-0.5f * LOG2_E) * conic[2];
    f.x = -(2.0f * f.xx * du + f.xy * dv);
    f.y = -(2.0f * f.yy * dv + f.xy * du);
    f.one = (f.xx * du + f.xy * dv) * du + f.yy * dv * dv + log_2(conic[3]);
    f.colour = colour_of(p, splat);
    return f;
}

// SKIP: leave out what no alpha reaches. Measured on an H200, the branch gains a quarter in `dual` and costs a sixth
// in `warp`, whose splats were tested against the patch before; a pack of pixels is always worth it.
template <typename Exponential, bool SKIP>
DEVICE void blend_folded(PixelState &state, Pixels log2_alpha, const Colour &colour) {
    if ((SKIP || PACK_PIXELS > 1) && !any_pixel(log2_alpha >= spread(POWER_MIN * LOG2_E))) return;
    const Pixels alpha = smaller(spread(ALPHA_MAX), Exponential::exp2(log2_alpha));
    composite(state, alpha, all_pixels(), colour);
}

// --- dual ---
template <typename Exponential> DEVICE void rasterize_dual(const FrameParams &p) {
    constexpr int THREADS = block_threads(DUAL_THREADS);
    constexpr int PACKS_PER_ROW = TILE_SIZE / PACK_PIXELS;
    constexpr int N_PAIRS = TILE_PIXELS / (2 * PACK_PIXELS * THREADS); // of one thread
    struct Shared {
        FoldedSplat splats[RASTERIZE_BATCH];
    };
    SHARED(Shared, shared);

    const uint32 tile = block_rank();
    const uint32 tile_x = tile % p.n_tiles_x * TILE_SIZE;
    const uint32 tile_y = tile / p.n_tiles_x * TILE_SIZE;
    const float origin_x = float(tile_x + TILE_SIZE / 2), origin_y = float(tile_y + TILE_SIZE / 2);
    const uint32 begin = p.tile_starts[tile], end = p.tile_starts[tile + 1];

    PixelState upper[N_PAIRS], lower[N_PAIRS];
    for (int i = 0; i < N_PAIRS; ++i) {
        const int pair = thread_rank() + i * THREADS;
        const uint32 x = tile_x + pair % PACKS_PER_ROW * PACK_PIXELS, y = tile_y + pair / PACKS_PER_ROW * 2;
        upper[i] = fresh_pixels(p, x, y);
        lower[i] = fresh_pixels(p, x, y + 1);
    }

    for (uint32 batch = begin; batch < end; batch += RASTERIZE_BATCH) {
        bool finished = true;
        for (int i = 0; i < N_PAIRS; ++i) finished = finished && !any_pixel(upper[i].alive | lower[i].alive);
        if (block_all(finished)) break; // also keeps the staging below behind the blending above

        const uint32 n_staged = end - batch < RASTERIZE_BATCH ? end - batch : RASTERIZE_BATCH;
        for (uint32 k = thread_rank(); k < n_staged; k += THREADS)
            shared.splats[k] = fold_splat(p, p.instance_splats[batch + k], origin_x, origin_y);
        block_sync();

        for (uint32 k = 0; k < n_staged; ++k) {
            const FoldedSplat f = shared.splats[k];
            for (int i = 0; i < N_PAIRS; ++i) {
                if (!any_pixel(upper[i].alive | lower[i].alive)) continue;
                const int pair = thread_rank() + i * THREADS;
                const Pixels x = first_pixels(float(pair % PACKS_PER_ROW * PACK_PIXELS - TILE_SIZE / 2) + 0.5f);
                const float y = float(pair / PACKS_PER_ROW * 2 - TILE_SIZE / 2) + 0.5f;
                // in x at this height; one row down adds yy (2 y + 1) + y + xy x
                const Pixels flat = multiply_add(multiply_add(spread(f.xx), x, spread(f.xy * y + f.x)), x,
                                                 spread((f.yy * y + f.y) * y + f.one));
                const Pixels step = multiply_add(spread(f.xy), x, spread(f.yy * (2.0f * y + 1.0f) + f.y));
                blend_folded<Exponential, true>(upper[i], flat, f.colour);
                blend_folded<Exponential, true>(lower[i], flat + step, f.colour);
            }
        }
    }

    for (int i = 0; i < N_PAIRS; ++i) {
        const int pair = thread_rank() + i * THREADS;
        const uint32 x = tile_x + pair % PACKS_PER_ROW * PACK_PIXELS, y = tile_y + pair / PACKS_PER_ROW * 2;
        write_pixels(p, x, y, upper[i]);
        write_pixels(p, x, y + 1, lower[i]);
    }
}

// --- warp ---
// Whether alpha can reach 1/255 at a pixel centre within [x0, x1] x [y0, y1], relative to the splat's centre: the least
// squared Mahalanobis distance in a rectangle without the centre is on an edge that faces it.
DEVICE bool reaches(float xx, float xy, float yy, float x0, float x1, float y0, float y1, float bound) {
    const float edge_x = clamp(0.0f, x0, x1), edge_y = clamp(0.0f, y0, y1);
    if (edge_x == 0.0f && edge_y == 0.0f) return true;
    const float y = clamp(-xy / yy * edge_x, y0, y1);
    const float on_x = (xx * edge_x + 2.0f * xy * y) * edge_x + yy * y * y;
    const float x = clamp(-xy / xx * edge_y, x0, x1);
    const float on_y = (yy * edge_y + 2.0f * xy * x) * edge_y + xx * x * x;
    return (edge_x != 0.0f && on_x <= bound) || (edge_y != 0.0f && on_y <= bound);
}

DEVICE bool reaches_patch(const FrameParams &p, uint32 splat, float x, float y) {
    const float *conic = p.splat_conics + 4 * uint64(splat);
    const float u = p.splat_means2d[2 * uint64(splat) + 0], v = p.splat_means2d[2 * uint64(splat) + 1];
    const float bound = CullTight::bound_squared(conic[3]);
    // the sums of a long thin splat round at the size of their terms: allow for it
    return bound > 0.0f && reaches(conic[0], conic[1], conic[2], x + 0.5f - u, x + (TILE_SIZE - 0.5f) - u, y + 0.5f - v,
                                   y + (PATCH_HEIGHT - 0.5f) - v, 1.001f * bound + 0.01f);
}

template <typename Exponential> DEVICE void rasterize_warp(const FrameParams &p) {
    constexpr int WARPS = block_threads(WARP_THREADS) / WARP_WIDTH;
    constexpr int BATCH = WARP_WIDTH == 1 ? RASTERIZE_BATCH : WARP_WIDTH; // splats tested at a time
    constexpr int PACKS_PER_ROW = TILE_SIZE / PACK_PIXELS;
    constexpr int N_COLUMNS = PACKS_PER_ROW * (PATCH_HEIGHT / 4) / WARP_WIDTH; // of four packs, of one thread
    constexpr uint32 PATCHES = TILE_SIZE / PATCH_HEIGHT;                       // of one tile
    struct Shared {
        FoldedSplat splats[WARPS][BATCH];
    };
    SHARED(Shared, shared);
    FoldedSplat *staged = shared.splats[warp_rank()];

    const uint32 n_patches = p.n_tiles_x * p.n_tiles_y * PATCHES;
    for (uint32 patch = block_rank() * WARPS + warp_rank(); patch < n_patches; patch += n_blocks() * WARPS) {
        const uint32 tile = patch / PATCHES;
        const uint32 patch_x = tile % p.n_tiles_x * TILE_SIZE;
        const uint32 patch_y = tile / p.n_tiles_x * TILE_SIZE + patch % PATCHES * PATCH_HEIGHT;
        const float origin_x = float(patch_x + TILE_SIZE / 2), origin_y = float(patch_y + PATCH_HEIGHT / 2);
        const uint32 begin = p.tile_starts[tile], end = p.tile_starts[tile + 1];

        PixelState states[N_COLUMNS][4];
        for (int i = 0; i < N_COLUMNS; ++i) {
            const int column = lane_rank() + i * WARP_WIDTH;
            for (int row = 0; row < 4; ++row)
                states[i][row] = fresh_pixels(p, patch_x + column % PACKS_PER_ROW * PACK_PIXELS,
                                              patch_y + column / PACKS_PER_ROW * 4 + row);
        }

        for (uint32 batch = begin; batch < end; batch += BATCH) {
            bool alive = false;
            for (int i = 0; i < N_COLUMNS; ++i)
                for (int row = 0; row < 4; ++row) alive = alive || any_pixel(states[i][row].alive);
            if (warp_ballot(alive) == 0) break;

            // stage the splats that reach the patch, in order
            int n_staged = 0;
            for (int k = lane_rank(); k < BATCH; k += WARP_WIDTH) {
                const bool is_splat = batch + k < end;
                const uint32 splat = is_splat ? p.instance_splats[batch + k] : 0;
                const bool stays = is_splat && reaches_patch(p, splat, float(patch_x), float(patch_y));
                const uint32 staying = warp_ballot(stays);
                if (stays)
                    staged[n_staged + count_bits(staying & ((1u << lane_rank()) - 1u))] =
                        fold_splat(p, splat, origin_x, origin_y);
                n_staged += count_bits(staying);
            }
            warp_sync();

            for (int k = 0; k < n_staged; ++k) {
                const FoldedSplat f = staged[k];
                for (int i = 0; i < N_COLUMNS; ++i) {
                    const int column = lane_rank() + i * WARP_WIDTH;
                    const Pixels x = first_pixels(float(column % PACKS_PER_ROW * PACK_PIXELS - TILE_SIZE / 2) + 0.5f);
                    const float top = float(column / PACKS_PER_ROW * 4 - PATCH_HEIGHT / 2) + 0.5f;
                    const Pixels one = multiply_add(multiply_add(spread(f.xx), x, spread(f.x)), x, spread(f.one));
                    const Pixels slope = multiply_add(spread(f.xy), x, spread(f.y));
                    for (int row = 0; row < 4; ++row) {
                        const Pixels y = spread(top + float(row));
                        const Pixels log2_alpha = multiply_add(multiply_add(spread(f.yy), y, slope), y, one);
                        blend_folded<Exponential, false>(states[i][row], log2_alpha, f.colour);
                    }
                }
            }
            warp_sync(); // staged is written again
        }

        for (int i = 0; i < N_COLUMNS; ++i) {
            const int column = lane_rank() + i * WARP_WIDTH;
            for (int row = 0; row < 4; ++row)
                write_pixels(p, patch_x + column % PACKS_PER_ROW * PACK_PIXELS,
                             patch_y + column / PACKS_PER_ROW * 4 + row, states[i][row]);
        }
    }
}

} // namespace edgegs
