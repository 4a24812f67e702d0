// Culling: which tiles a splat can touch. Projecting counts them and duplicating emits them, in different kernels, so
// both call the same functions on the same stored floats, written with operations that no compiler fuses; emitting is
// capped by the count all the same.
#pragma once

namespace edgegs {

struct Vec3 {
    float x, y, z;
};

DEVICE float dot(Vec3 a, Vec3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
DEVICE Vec3 cross(Vec3 a, Vec3 b) {
    return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}
DEVICE float clamp(float value, float low, float high) { return lesser(greater(value, low), high); }

// The 2D covariance (pixels^2) as its three distinct entries; its determinant, and the one before the blur.
struct Cov2d {
    float xx, xy, yy, det, sharp_det;
};

struct TileRect {
    uint16 x_begin, y_begin, x_end, y_end;
};

struct Span {
    uint32 begin, end;
};

// A splat on the screen, pixels; the tiles that it can touch lie in `rect`.
struct Footprint {
    float u, v;
    float xx, xy, yy; // conic
    float opacity;
    float half_width, half_height; // of the box around what alpha can reach (tight only)
    TileRect rect;
};

DEVICE uint32 tile_edge(float position, uint32 n_tiles) {
    return uint32(clamp(round_down(position * (1.0f / TILE_SIZE)), 0.0f, float(n_tiles)));
}

// The original's rule: a square of RADIUS_SIGMAS standard deviations along the longer axis, whole pixels.
// Pixel i is centred on i + 0.5, so positions are shifted by half a pixel to count as the original counts.
struct CullRadius {
    static DEVICE void bound(const FrameParams &p, const Cov2d &cov, Footprint &f) {
        const float middle = 0.5f * (cov.xx + cov.yy);
        const float half_difference = 0.5f * (cov.xx - cov.yy);
        const float discriminant = half_difference * half_difference + cov.xy * cov.xy;
        const float lambda = middle + square_root(discriminant > EIGENVALUE_FLOOR ? discriminant : EIGENVALUE_FLOOR);
        const float radius = round_up(RADIUS_SIGMAS * square_root(lambda));
        f.half_width = f.half_height = radius;
        f.rect.x_begin = uint16(tile_edge(f.u - 0.5f - radius, p.n_tiles_x));
        f.rect.y_begin = uint16(tile_edge(f.v - 0.5f - radius, p.n_tiles_y));
        f.rect.x_end = uint16(tile_edge(f.u - 0.5f + radius + (TILE_SIZE - 1), p.n_tiles_x));
        f.rect.y_end = uint16(tile_edge(f.v - 0.5f + radius + (TILE_SIZE - 1), p.n_tiles_y));
    }
    static DEVICE uint32 n_tiles(const FrameParams &, const Footprint &f) {
        return uint32(f.rect.x_end - f.rect.x_begin) * uint32(f.rect.y_end - f.rect.y_begin);
    }
    static DEVICE Span row(const FrameParams &, const Footprint &f, uint32) { return {f.rect.x_begin, f.rect.x_end}; }
    static DEVICE void write(const FrameParams &p, uint32 splat, const Footprint &f) {
        *(TileRect *)(p.splat_rects + 4 * uint64(splat)) = f.rect;
    }
    static DEVICE Footprint read(const FrameParams &p, uint32 splat) {
        Footprint f;
        f.rect = *(const TileRect *)(p.splat_rects + 4 * uint64(splat));
        return f;
    }
};

// Speedy-Splat's observation (Hanson et al. 2025), derived anew: alpha reaches 1/255 where the squared Mahalanobis
// distance is at most t = 2 ln(255 opacity): an ellipse. Its exact box bounds the rows; within a row of tiles the
// exact extent of the ellipse, cut to the row's band of pixel centres, bounds the columns.
struct CullTight {
    // 2 ln(255 opacity) and a little more; not positive for a splat that is never drawn
    static DEVICE float bound_squared(float opacity) {
        const float t = multiply(2.0f / LOG2_E, log_2_fast(multiply(opacity, 1.0f / ALPHA_MIN)));
        return t > 0.0f ? add(t, TIGHT_SLACK) : (t > -TIGHT_SLACK ? TIGHT_SLACK : 0.0f);
    }
    static DEVICE void bound(const FrameParams &p, const Cov2d &cov, Footprint &f) {
        const float t = bound_squared(f.opacity);
        f.half_width = square_root(t * cov.xx);
        f.half_height = square_root(t * cov.yy);
        f.rect.x_begin = f.rect.x_end = f.rect.y_begin = f.rect.y_end = 0;
        if (!(t > 0.0f)) return;
        const Span x = tiles_with_centres(f.u - f.half_width, f.u + f.half_width, p.n_tiles_x);
        const Span y = tiles_with_centres(f.v - f.half_height, f.v + f.half_height, p.n_tiles_y);
        f.rect.x_begin = uint16(x.begin);
        f.rect.x_end = uint16(x.end);
        f.rect.y_begin = uint16(y.begin);
        f.rect.y_end = uint16(y.end);
    }
    // Tiles that have a pixel centre in [low, high]: centre i + 0.5 is in when i >= low - 0.5 and i <= high - 0.5.
    static DEVICE Span tiles_with_centres(float low, float high, uint32 n_tiles) {
        const float first = round_up(add(low, -0.5f)), last = round_down(add(high, -0.5f));
        Span span = {tile_edge(first, n_tiles), tile_edge(add(last, float(TILE_SIZE)), n_tiles)};
        if (!(last >= first)) span.end = span.begin;
        return span;
    }
    // Columns of row y. With d = the height over the splat's centre, the ellipse's edges are at
    // (-xy d -+ sqrt(xx t - det d^2)) / xx, and xx t - det d^2 = xx t (1 - d^2 / half_height^2).
    // Each edge is farthest out at d = +-xy half_width / yy, if that is in the band; else at the band's nearer end.
    static DEVICE Span row(const FrameParams &p, const Footprint &f, uint32 y) {
        const float low = clamp(add(float(y * TILE_SIZE) + 0.5f, -f.v), -f.half_height, f.half_height);
        const float high = clamp(add(float(y * TILE_SIZE) + (TILE_SIZE - 0.5f), -f.v), -f.half_height, f.half_height);
        const float lean = multiply(f.xy, f.half_width) / f.yy;
        const float left = edge(f, clamp(lean, low, high), -1.0f);
        const float right = edge(f, clamp(-lean, low, high), 1.0f);
        Span span = tiles_with_centres(add(f.u, left), add(f.u, right), p.n_tiles_x);
        // rounding must not leave the box: the count is made with it
        if (span.begin < f.rect.x_begin) span.begin = f.rect.x_begin;
        if (span.end > f.rect.x_end) span.end = f.rect.x_end;
        if (span.end < span.begin) span.end = span.begin;
        return span;
    }
    static DEVICE float edge(const Footprint &f, float d, float side) {
        const float t = bound_squared(f.opacity);
        const float ratio = d / f.half_height;
        const float rest = add(1.0f, -multiply(ratio, ratio));
        const float root = square_root(multiply(multiply(f.xx, t), rest > 0.0f ? rest : 0.0f));
        return add(multiply(-f.xy, d), multiply(side, root)) / f.xx;
    }
    static DEVICE uint32 n_tiles(const FrameParams &p, const Footprint &f) {
        uint32 count = 0;
        for (uint32 y = f.rect.y_begin; y < f.rect.y_end; ++y) {
            const Span span = row(p, f, y);
            count += span.end - span.begin;
        }
        return count;
    }
    static DEVICE void write(const FrameParams &p, uint32 splat, const Footprint &f) {
        CullRadius::write(p, splat, f);
        p.splat_extents[2 * uint64(splat) + 0] = f.half_width;
        p.splat_extents[2 * uint64(splat) + 1] = f.half_height;
    }
    static DEVICE Footprint read(const FrameParams &p, uint32 splat) {
        Footprint f = CullRadius::read(p, splat);
        f.u = p.splat_means2d[2 * uint64(splat) + 0];
        f.v = p.splat_means2d[2 * uint64(splat) + 1];
        f.xx = p.splat_conics[4 * uint64(splat) + 0];
        f.xy = p.splat_conics[4 * uint64(splat) + 1];
        f.yy = p.splat_conics[4 * uint64(splat) + 2];
        f.opacity = p.splat_conics[4 * uint64(splat) + 3];
        f.half_width = p.splat_extents[2 * uint64(splat) + 0];
        f.half_height = p.splat_extents[2 * uint64(splat) + 1];
        return f;
    }
};

} // namespace edgegs
