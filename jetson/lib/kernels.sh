# The kernels, built here and by the service's user; and a scene to begin with.
# shellcheck shell=bash

#: service_env: the environment of the service, as far as commands need it
service_env() {
    local folder
    SERVICE_ENV=(env -i "HOME=$R/var/lib/edgegs" "EDGEGS_CACHE=$R/var/cache/edgegs" "LANG=C.UTF-8")
    SERVICE_ENV+=("CUDA_CACHE_PATH=$R/var/cache/edgegs/cuda" "PATH=$(service_path)")
    if needs_coretype; then SERVICE_ENV+=(OPENBLAS_CORETYPE=ARMV8); fi
    [ -z "$PRELOAD" ] || SERVICE_ENV+=("LD_PRELOAD=$PRELOAD")
    folder=$R/var/cache/edgegs/tmp
    [ "$(free_mb /tmp)" -ge 1000 ] || SERVICE_ENV+=("TMPDIR=$folder")
}

service_path() {
    local path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    [ -z "$CUDA_HOME" ] || [ "$CUDA_HOME" = /usr ] || path=$CUDA_HOME/bin:$path
    printf '%s\n' "$path"
}

#: AS_SERVICE: words before a command that runs as the service's user
as_service() {
    service_env
    AS_SERVICE=(runuser -u edgegs -- "${SERVICE_ENV[@]}")
}

#: built_archs: architectures that the cache holds, of this source and for this processor; then "gpu sm_NN" when asked
built_archs() {
    "${AS_SERVICE[@]}" "$R$VENV/bin/edgegs" kernels list --json 2>/dev/null | venv_python -c '
import json, sys
told = json.load(sys.stdin)
for image in told["images"]:
    if image["current"] and image["path"].startswith(sys.argv[1]):
        if image["arch"] != "host" or image["selected"]:
            print(image["arch"])
if told["gpu"]:
    print("gpu sm_%d%d" % tuple(told["gpu"]["capability"]))
' "$R/var/cache/edgegs/" || true
}

kernels() {
    local have='' arch
    as_service
    if [ "$DRY" = no ]; then
        case " ${SERVICE_ENV[*]} " in *' TMPDIR='*) "${AS_SERVICE[@]}" mkdir -p "$R/var/cache/edgegs/tmp" ;; esac
    fi
    [ ! -x "$R$VENV/bin/edgegs" ] || [ "$DRY" = yes ] || have=$(built_archs)
    if [ "$CUDA" = yes ] && [ -z "$ARCH" ]; then
        ARCH=$(sed -n 's/^gpu //p' <<<"$have")
        [ -n "$ARCH" ] || [ "$DRY" = yes ] ||
            die "the GPU does not tell its compute capability" "nvidia-smi (it may say why; reboot after a driver's upgrade), or --no-cuda"
    fi
    build_kernels host "$have"
    [ "$CUDA" = no ] || build_kernels "${ARCH:-sm_NN}" "$have"
}

#: build_kernels ARCH HAVE: one architecture and one job a call, for the sake of a board's memory
build_kernels() {
    local arch=$1 hint="'Killed': --swap 4G, and close the desktop (sudo systemctl isolate multi-user.target)"
    if grep -qxF -- "$arch" <<<"$2"; then
        say "unchanged: kernels for $arch"
        return 0
    fi
    if [ "$arch" = host ]; then hint+="; no compiler: sudo apt install g++"; else hint+="; or --no-cuda"; fi
    RESTART=yes
    run "compile the kernels for $arch (minutes on a board)" "${AS_SERVICE[@]}" "$R$VENV/bin/edgegs" kernels build \
        --arch "$arch" || die "the kernels for $arch cannot be built" "$hint"
}

#: A first picture needs a scene; a configuration of one's own has one.
first_scene() {
    local folder=$R/var/lib/edgegs/scenes scene=/var/lib/edgegs/scenes/room.ply
    if [ -e "$R$scene" ]; then
        say "unchanged: $scene"
    elif [ "$DRY" = no ] && ! grep -qF "$scene" "$R/etc/edgegs/edgegs.yaml"; then
        say "the configuration names a scene of its own"
    else
        run "make a room of 50,000 splats" "${AS_SERVICE[@]}" "$R$VENV/bin/edgegs" synth room -n 50000 \
            -o "$folder/.room.ply" || die "the scene cannot be written" "df -h /var"
        run "… whole or not at all" "${AS_SERVICE[@]}" mv -f "$folder/.room.ply" "$R$scene"
    fi
}

doctor() {
    local status=0 changed=$CHANGED
    run "what the service would find" "${AS_SERVICE[@]}" "$R$VENV/bin/edgegs" doctor || status=$?
    CHANGED=$changed # it only looks
    if [ "$status" != 0 ]; then
        warn "edgegs is in place, but the doctor names a problem above, and the command that mends it"
        exit 3
    fi
}
