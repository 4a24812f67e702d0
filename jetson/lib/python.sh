# The environment in /opt/edgegs/venv, and what is installed into it.
# shellcheck shell=bash

#: What pip's builds get: settled by `build_environment`
BUILD_ENV=()
PRELOAD=''

venv_python() { "$R$VENV/bin/python" "$@"; }

venv_works() {
    [ -x "$R$VENV/bin/python" ] &&
        venv_python -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null &&
        venv_python -m pip --version >/dev/null 2>&1
}

environment() {
    local version='' pip='pip>=21.3'
    if venv_works; then
        say "unchanged: $VENV"
        PYTHON_VERSION=$(venv_python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        version=$(venv_python -m pip --version | awk '{ print $2 }')
    else
        drop "an environment that does not work, or was never finished" "$VENV"
        run "Python packages of its own, apart from the system's" "$PYTHON" -m venv "$R$VENV" ||
            die "$PYTHON cannot make an environment in $VENV" "sudo apt install $PYTHON-venv; is there room? df -h $PREFIX"
        [ "$DRY" = yes ] || version=$(venv_python -m pip --version | awk '{ print $2 }')
    fi
    build_environment
    # before 19.3 pip sees no wheels for aarch64 and compiles NumPy on the board; 9 installs "UNKNOWN" and says all is well
    if [ -n "$version" ] && at_least "$version" 21.3; then
        say "pip $version is new enough"
        return 0
    fi
    [ "$PYTHON_VERSION" != 3.8 ] || pip='pip>=21.3,<=25.0.1'
    run "a pip that knows today's wheels" "${BUILD_ENV[@]}" "$R$VENV/bin/python" -m pip install "${PIP_WORDS[@]}" \
        --upgrade "$pip" || die "pip cannot be upgraded" "$(network_hint)"
}

network_hint() {
    if [ -n "$WHEELS" ]; then
        printf 'put what pip misses above into %s (pip download on a machine with the same Python and processor)' "$WHEELS"
    else
        printf 'is this machine on the network, with the right time (a Nano has no clock)? or --offline-wheels DIR'
    fi
}

build_environment() {
    local library folder path=''
    PIP_WORDS=(--no-input --disable-pip-version-check)
    [ -z "$WHEELS" ] || PIP_WORDS+=(--no-index --find-links "$WHEELS")
    # the kernels are built by a step of their own, one architecture at a time
    BUILD_ENV=(env EDGEGS_BUILD_KERNELS=0 MAKEFLAGS=-j1)
    # NumPy's OpenBLAS takes the Nano's processor for another one: "Illegal instruction"
    if needs_coretype; then BUILD_ENV+=(OPENBLAS_CORETYPE=ARMV8); fi
    if [ "$(free_mb /tmp)" -lt 1000 ]; then
        BUILD_ENV+=("TMPDIR=$R$PREFIX/tmp") # compilers write much there
        [ -d "$R$PREFIX/tmp" ] || run "room for compilers: /tmp is small" mkdir -p -- "$R$PREFIX/tmp"
    fi
    [ "$CUDA" = yes ] && [ -n "$CUDA_HOME" ] || return 0
    BUILD_ENV+=("PATH=$R$CUDA_HOME/bin:$PATH" "CUDA_ROOT=$R$CUDA_HOME")
    library=''
    for folder in /usr/lib/aarch64-linux-gnu/tegra /usr/lib/aarch64-linux-gnu/nvidia; do
        [ ! -d "$R$folder" ] || library+=" -L$R$folder"
    done
    [ -z "$library" ] || BUILD_ENV+=("LDFLAGS=${library# }${LDFLAGS:+ $LDFLAGS}")
    # the stubs of libcuda are for linkers: loaded, they say that there is no driver
    while IFS= read -r -d : folder; do
        case $folder in '' | */stubs | */stubs/) ;; *) path+=${path:+:}$folder ;; esac
    done <<<"${LD_LIBRARY_PATH:-}:"
    BUILD_ENV+=("LD_LIBRARY_PATH=$path")
}

needs_coretype() { [ "$MACHINE" = aarch64 ] && { [ "${L4T%%.*}" = 32 ] || [[ $COMPATIBLE == *tegra210* ]]; }; }

#: what a wheel is built from
PARTS=(pyproject.toml setup.py README.md LICENSE edgegs cuda configs systemd jetson/boards.yaml jetson/power-mode.sh)

#: fingerprint: of everything that decides what is in the environment
fingerprint() {
    {
        printf '%s\n' "$PYTHON_VERSION" "$CUDA" "$GPU" "$EXTRAS"
        if [ -n "$PACKAGE" ]; then
            sha256sum <"$PACKAGE"
        else
            cd -- "$SOURCE" || exit 1
            find "${PARTS[@]}" -type f ! -name '*.py[co]' -print0 |
                LC_ALL=C sort -z | xargs -0 sha256sum
        fi
    } | sha256sum | cut -d ' ' -f 1
}

#: what must be in the environment afterwards, as pip names it
expected_version() {
    if [ -n "$PACKAGE" ]; then
        basename -- "$PACKAGE" | cut -d - -f 2
    else
        sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$SOURCE/edgegs/__init__.py"
    fi
}

installed_version() {
    venv_python -c 'from importlib import metadata; print(metadata.version("edgegs"))' 2>/dev/null || true
}

python_packages() {
    local stamp expected extras=$EXTRAS
    stamp=$(fingerprint)
    expected=$(expected_version)
    if [ -x "$R$VENV/bin/edgegs" ] && [ "$(text "$VENV/edgegs-installed")" = "$stamp" ] &&
        [ "$(installed_version)" = "$expected" ]; then
        say "unchanged: edgegs $expected"
        check_imports
        return 0
    fi
    RESTART=yes
    if [ "$CUDA" = yes ]; then
        install_pycuda
        extras=cuda${extras:+,$extras}
        [ "$TEGRA" = yes ] || extras=nvidia,$extras
    fi
    install_edgegs "$extras" "$expected"
    [ "$TEGRA" = no ] || install_jtop
    [ "$DRY" = no ] || return 0
    check_imports
    printf '%s\n' "$stamp" >"$R$VENV/edgegs-installed"
}

pip_install() { # WHY WHAT-TO-DO ARGUMENT…
    local why=$1 hint=$2
    shift 2
    run "$why" "${BUILD_ENV[@]}" "$R$VENV/bin/python" -m pip install "${PIP_WORDS[@]}" "$@" || die "pip install $*" "$hint"
}

install_pycuda() {
    if [ -x "$R$VENV/bin/python" ] && venv_python -c 'import pycuda.driver' 2>/dev/null; then
        say "unchanged: pycuda"
        return 0
    fi
    pip_install "pycuda, compiled here for this CUDA (minutes on a board)" \
        "look for the first error above: 'Killed': --swap 4G and no desktop; 'cuda.h': the CUDA toolkit; '-lcuda': the driver's libcuda.so; or --no-cuda" \
        'pycuda>=2022.1'
}

install_edgegs() { # EXTRAS VERSION
    local what build=''
    if [ -n "$PACKAGE" ]; then
        what=$PACKAGE
    else
        what=$SOURCE
        if [ "$DRY" = no ]; then # a copy: building leaves files of root's beside the sources
            build=$R$PREFIX/build
            rm -rf -- "$build"
            mkdir -p -- "$build"
            (cd -- "$SOURCE" && cp -R --parents -- "${PARTS[@]}" "$build/") ||
                die "no room for a copy in $build" "df -h $PREFIX"
            what=$build
        fi
    fi
    pip_install "edgegs and the packages that it uses" "$(network_hint)" "$what${1:+[$1]}"
    # the same version again is not taken from a wheel without being told so
    [ -z "$PACKAGE" ] || pip_install "this very wheel, also over the same version" "$(network_hint)" \
        --force-reinstall --no-deps "$what"
    [ "$DRY" = no ] || return 0
    rm -rf -- "$R$PREFIX/build"
    [ "$(installed_version)" = "$2" ] ||
        die "pip says that all is well, but edgegs $2 is not there ($(installed_version))" "rm -r $VENV"
    if venv_python -m pip show UNKNOWN >/dev/null 2>&1; then
        die "pip installed a package UNKNOWN: it is too old" "rm -r $VENV"
    fi
}

#: jtop's client must have the version of its service.
install_jtop() {
    local version=''
    if has jtop; then
        version=$(jtop --version 2>/dev/null | sed -n 's/^jtop \([0-9][0-9.]*\).*/\1/p') || version=''
    fi
    if [ -z "$version" ]; then
        say "jtop (jetson-stats) is not here: sensors are read from /sys; sudo pip3 install jetson-stats brings it"
        return 0
    fi
    run "the client of this board's jtop $version" "${BUILD_ENV[@]}" "$R$VENV/bin/python" -m pip install \
        "${PIP_WORDS[@]}" "jetson-stats==$version" || warn "no client of jtop $version: sensors are read from /sys"
}

#: Imports the two packages that bite on boards; a library that must be loaded first goes into the environment file.
check_imports() {
    local words status=0
    words=$("${BUILD_ENV[@]}" "$R$VENV/bin/python" -c 'import numpy, cv2, edgegs' 2>&1) || status=$?
    if [ "$status" != 0 ] && [[ $words == *'static TLS'* && $words =~ (/[^ :]*\.so[.0-9]*) ]]; then
        PRELOAD=${BASH_REMATCH[1]}
        say "$PRELOAD must be loaded before all else: written into /etc/edgegs/environment"
        status=0
        words=$("${BUILD_ENV[@]}" "LD_PRELOAD=$PRELOAD" "$R$VENV/bin/python" -c 'import numpy, cv2, edgegs' 2>&1) || status=$?
    fi
    case $status in
        0) return 0 ;;
        132) die "NumPy dies with 'Illegal instruction' on this processor" "OPENBLAS_CORETYPE=ARMV8 $0 …; report the board" ;;
        *) die "the packages cannot be imported: ${words##*$'\n'}" "rm -r $VENV; libGL or libglib: sudo apt install libgl1 libglib2.0-0" ;;
    esac
}
