// Scoring, not a stage of a frame: how much each splat matters to the frame just drawn. The lists of the tiles are walked
// once more, as the raster `block` does, and the squares of each splat's weights T alpha are added up. Whole steps are
// added, not floats, so that no order of the atomics changes a sum. Block: a tile, a thread a pixel.
#pragma once

namespace edgegs {

DEVICE uint32 score_steps(Pixels weight) {
    const Pixels squared = weight * weight;
    uint32 sum = 0;
    for (int j = 0; j < PACK_PIXELS; ++j) sum += uint32(pixel_of(squared, j) * SCORE_STEPS + 0.5f);
    return sum;
}

DEVICE void score(const FrameParams &p) {
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
            uint32 sum = 0;
            for (int i = 0; i < N_PACKS; ++i) {
                const int pack = thread_rank() + i * THREADS;
                const float x = float(tile_x + pack % PACKS_PER_ROW * PACK_PIXELS) + 0.5f;
                const float y = float(tile_y + pack / PACKS_PER_ROW) + 0.5f;
                if (any_pixel(states[i].alive)) sum += score_steps(blend<ExpExact>(states[i], s, first_pixels(x), y));
            }
            for (int distance = 1; distance < WARP_WIDTH; distance *= 2) {
                const uint32 lower = warp_shuffle_up(sum, distance);
                if (lane_rank() >= distance) sum += lower;
            }
            if (lane_rank() == WARP_WIDTH - 1 && sum > 0) add_to(p.splat_scores + p.instance_splats[batch + k], sum);
        }
    }
}

} // namespace edgegs
