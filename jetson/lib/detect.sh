# What machine this is. Reads only, and works as any user.
# shellcheck shell=bash

#: text FILE: what a file below the root says, without NULs; nothing where it cannot be read
text() { { tr '\0' '\n' <"$R$1"; } 2>/dev/null || true; }

#: meminfo NAME: in MB
meminfo() { text /proc/meminfo | awk -v name="$1:" '$1 == name { print int($2 / 1024) }'; }

detect() {
    local release
    MACHINE=$(uname -m)
    OS_ID=$(text /etc/os-release | sed -n 's/^ID=//p' | tr -d '"')
    OS_VERSION=$(text /etc/os-release | sed -n 's/^VERSION_ID=//p' | tr -d '"')
    COMPATIBLE=$(text /proc/device-tree/compatible)
    MODEL=$(text /proc/device-tree/model)
    release=$(text /etc/nv_tegra_release | head -n 1)
    L4T=''
    if [[ $release =~ R([0-9]+)\ *\(release\),\ *REVISION:\ *([0-9.]+) ]]; then
        L4T=${BASH_REMATCH[1]}.${BASH_REMATCH[2]}
    fi
    TEGRA=no
    case $COMPATIBLE in *nvidia,tegra*) TEGRA=yes ;; esac
    detect_gpu
    detect_cuda
    MEMORY_MB=$(meminfo MemTotal)
    MEMORY_MB=${MEMORY_MB:-0}
    SWAP_MB=$(text /proc/swaps | awk 'NR > 1 && $1 !~ /zram/ { kb += $3 } END { print int(kb / 1024) }')
    SYSTEMD=''
    if has systemctl; then
        SYSTEMD=$(systemctl --version 2>/dev/null | awk 'NR == 1 { print int($2) }')
    fi
    SYSTEMD_RUNS=no
    [ ! -d "$R/run/systemd/system" ] || SYSTEMD_RUNS=yes
}

#: GPU yes or no, and its architecture (sm_NN, empty when not known yet)
detect_gpu() {
    local folder capability=''
    GPU=no ARCH='' DRIVER=no
    if [ "$TEGRA" = yes ]; then
        GPU=yes DRIVER=yes
        case $COMPATIBLE in
            *tegra210*) ARCH=sm_53 ;;
            *tegra186*) ARCH=sm_62 ;;
            *tegra194*) ARCH=sm_72 ;;
            *tegra234*) ARCH=sm_87 ;;
        esac
    else
        for folder in "$R"/sys/bus/pci/devices/*; do
            [ "$(cat "$folder/vendor" 2>/dev/null)" = 0x10de ] || continue
            case $(cat "$folder/class" 2>/dev/null) in 0x03*) GPU=yes ;; esac
        done
        [ ! -e "$R/proc/driver/nvidia/version" ] || DRIVER=yes
    fi
    if [ "$GPU" = yes ] && [ -z "$ARCH" ] && has nvidia-smi; then
        capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1) || capability=''
        [[ ! $capability =~ ^([0-9]+)\.([0-9])$ ]] || ARCH=sm_${BASH_REMATCH[1]}${BASH_REMATCH[2]}
    fi
    if [ "$CUDA" = auto ]; then
        CUDA=$GPU
        [ "$DRIVER" = yes ] || CUDA=no
    fi
}

#: CUDA_HOME: the toolkit, whose nvcc is off PATH in services and under sudo; NVCC_RELEASE
detect_cuda() {
    local candidate
    CUDA_HOME='' NVCC_RELEASE=''
    for candidate in "$R/usr/local/cuda/bin/nvcc" "$R"/usr/local/cuda-[0-9]*/bin/nvcc "$(command -v nvcc || true)"; do
        [ -x "$candidate" ] || continue
        NVCC_RELEASE=$("$candidate" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p') || NVCC_RELEASE=''
        [ -n "$NVCC_RELEASE" ] || continue
        CUDA_HOME=$(dirname -- "$(dirname -- "$candidate")")
        CUDA_HOME=${CUDA_HOME#"$R"}
        break
    done
}

#: detect_python: PYTHON, the first with 3.8 or later, and PYTHON_VERSION; empty when there is none
detect_python() {
    local candidate version
    PYTHON='' PYTHON_VERSION=''
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8; do
        has "$candidate" || continue
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        if at_least "$version" 3.8; then
            PYTHON=$candidate PYTHON_VERSION=$version
            return 0
        fi
    done
}

#: at_least A B: whether version A is B or later
at_least() { printf '%s\n%s\n' "$2" "$1" | sort -V -C; }

say_machine() {
    local gstreamer='not here' gpu='no NVIDIA GPU' opencv
    detect_python
    say "machine:   ${MODEL:-$MACHINE}, $MACHINE, ${OS_ID:-unknown} ${OS_VERSION:-}${L4T:+, Jetson Linux $L4T}"
    if [ "$GPU" = yes ]; then
        gpu="NVIDIA ${ARCH:-GPU of unknown architecture}"
        [ "$DRIVER" = yes ] || gpu+=', but its driver is not loaded'
        [ "$CUDA" = yes ] || gpu+=': not used'
    fi
    say "GPU:       $gpu"
    say "CUDA:      ${CUDA_HOME:-no toolkit}${NVCC_RELEASE:+, nvcc $NVCC_RELEASE}"
    say "Python:    ${PYTHON:-none of 3.8 or later}${PYTHON_VERSION:+ ($PYTHON_VERSION)}"
    ! has gst-inspect-1.0 || gstreamer=$(gst-inspect-1.0 --version 2>/dev/null | sed -n 's/^GStreamer //p')
    say "GStreamer: $gstreamer"
    opencv=$(python3 -c 'import cv2; print(cv2.__version__)' 2>/dev/null) || opencv='not here'
    say "OpenCV:    the system's: $opencv (edgegs has its own)"
    say "memory:    $MEMORY_MB MB, swap $SWAP_MB MB (without zram)"
    say "disk:      $(free_mb "$PREFIX") MB free for $PREFIX, $(free_mb /tmp) MB in /tmp"
    say "systemd:   ${SYSTEMD:-none}$([ "$SYSTEMD_RUNS" = yes ] || printf ', not running')"
}

#: free_mb PATH: free space of the nearest folder that is there, MB
free_mb() {
    local path=$R$1
    while [ ! -d "$path" ]; do path=$(dirname -- "$path"); done
    df -Pm -- "$path" | awk 'NR == 2 { print int($4) }'
}

check_machine() {
    local needed=1500
    [ "$CUDA" = no ] || needed=2500
    if [ ! -e "$R$VENV/bin/edgegs" ] && [ "$(free_mb "$PREFIX")" -lt "$needed" ]; then
        die "$PREFIX has less than $needed MB free" "sudo apt-get clean; du -xh / | sort -h | tail; or --prefix on another disk"
    fi
    if [ "$GPU" = yes ] && [ "$DRIVER" = no ]; then
        warn "an NVIDIA GPU is here, but its driver is not loaded: sudo ubuntu-drivers install (Debian: apt install" \
            "nvidia-driver), reboot, and run this again; until then the kernels run on the processor"
    fi
    if [ "$TEGRA" = yes ] && [ "$CUDA" = yes ] && [ -z "$CUDA_HOME" ]; then
        die "no CUDA toolkit: neither /usr/local/cuda*/bin/nvcc nor nvcc on PATH" \
            "sudo apt install nvidia-jetpack (or cuda-toolkit of your JetPack), or --no-cuda"
    fi
}
