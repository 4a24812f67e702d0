# Packages of the system (apt), and swap.
# shellcheck shell=bash

#: missing_of PACKAGE…: those that are not installed, also not under the name that Ubuntu 24.04 gave to libraries (…t64)
missing_of() {
    local here name
    # shellcheck disable=SC2016 # dpkg's variables
    here=$'\n'$(dpkg-query -W -f='${db:Status-Status} ${Package}\n')$'\n'
    for name in "$@"; do
        case $here in
            *$'\n'"installed $name"$'\n'* | *$'\n'"installed ${name}t64"$'\n'*) ;;
            *) printf '%s\n' "$name" ;;
        esac
    done
}

#: python_system_packages: what gives a Python 3.8 or later that can make environments
python_system_packages() {
    local name=python3
    [ -n "$PYTHON" ] || name=python3.8 # Ubuntu 18.04 has it beside its 3.6
    [ -z "$PYTHON" ] || name=$PYTHON
    printf '%s\n' "$name" "$name-venv"
    [ "$CUDA" = no ] || printf '%s\n' "$name-dev" # pycuda is compiled
}

#: wanted_packages: one a line
wanted_packages() {
    printf '%s\n' ca-certificates g++ libgl1 libglib2.0-0 procps # procps: the unit's kill
    python_system_packages
    if [ "$CUDA" = yes ] && [ -z "$CUDA_HOME" ]; then
        printf '%s\n' nvidia-cuda-toolkit # the headers that pycuda is compiled with
    fi
    if [ "$GSTREAMER" = yes ]; then
        printf '%s\n' gstreamer1.0-tools gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad \
            gstreamer1.0-plugins-ugly gstreamer1.0-rtsp python3-gi gir1.2-gst-rtsp-server-1.0
    fi
    [ "$KIOSK" = no ] || printf '%s\n' x11-xserver-utils # xhost
}

system_packages() {
    local wanted
    mapfile -t wanted < <(wanted_packages)
    apt_install "compilers, libraries and tools that edgegs uses" "${wanted[@]}"
    [ "$DRY" = yes ] || detect_python
    [ "$DRY" = yes ] || detect_cuda
    if [ -z "$PYTHON" ]; then
        [ "$DRY" = yes ] || die "there is no Python 3.8 or later" "put python3.8 (or newer, with venv) on PATH"
        PYTHON=python3.8 PYTHON_VERSION=3.8
    fi
}

#: apt_install WHY PACKAGE…: those that are missing
apt_install() {
    local why=$1 missing
    shift
    if ! has apt-get || ! has dpkg-query; then
        warn "no apt-get here: these must come another way, if they are not here: $*"
        has g++ || has clang++ || die "no apt-get, and no C++ compiler" "install g++ (or clang++) and Python 3.8 with venv"
        return 0
    fi
    mapfile -t missing < <(missing_of "$@")
    if [ ${#missing[@]} -eq 0 ]; then
        say "all are here: $*"
        return 0
    fi
    if has dpkg && [ -n "$(dpkg --audit 2>/dev/null || true)" ]; then
        run "an earlier installation of packages was interrupted: finish it" \
            env DEBIAN_FRONTEND=noninteractive dpkg --configure -a 9>&- ||
            die "dpkg cannot finish an earlier installation" "sudo dpkg --configure -a; sudo apt-get -f install"
    fi
    # a stale list is not fatal: what is missing may be in it
    run "read the lists of packages" apt-get -o DPkg::Lock::Timeout=300 update 9>&- ||
        warn "apt-get update failed: is this machine on the network? going on with the lists that are here"
    run "$why" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y \
        --no-install-recommends "${missing[@]}" 9>&- ||
        die "apt-get cannot install ${missing[*]}" "look at apt's words above; $(apt_hint)"
    [ "$DRY" = yes ] || note packages "${missing[@]}"
}

apt_hint() {
    case $OS_ID in
        ubuntu) printf 'is universe on? sudo add-apt-repository universe && sudo apt-get update' ;;
        *) printf 'are the right sources in /etc/apt? (nvidia-cuda-toolkit is in contrib and non-free)' ;;
    esac
    [ "$CUDA" = no ] || printf '; without a GPU: --no-cuda'
    [ "$GSTREAMER" = no ] || printf '; without streams: --no-gstreamer'
}

#: note NAME LINE…: remember for --uninstall
note() {
    local name=$1 line
    shift
    mkdir -p -- "$STATE"
    touch "$STATE/$name"
    for line in "$@"; do
        grep -qxF -- "$line" "$STATE/$name" || printf '%s\n' "$line" >>"$STATE/$name"
    done
}

SWAPFILE=/var/swap-edgegs

#: Compilers are killed on 4 GB without swap.
swap() {
    local size=$SWAP size_mb
    if [ "$size" = ask ]; then
        if [ "$MEMORY_MB" -ge 6000 ] || [ $((MEMORY_MB + SWAP_MB)) -ge 5500 ]; then
            say "memory and swap are enough to compile"
            return 0
        fi
        if ask "only $MEMORY_MB MB of memory and $SWAP_MB MB of swap: compilers may be killed. Make a swap file of 4 GB?"; then
            size=4G
        else
            warn "$MEMORY_MB MB of memory and $SWAP_MB MB of swap: compilers may be killed; --swap 4G makes a swap file"
            return 0
        fi
    fi
    if [ "$size" = 0 ]; then
        say "no swap file asked for"
        return 0
    fi
    size_mb=${size%?}
    [ "${size: -1}" = M ] || size_mb=$((size_mb * 1024))
    if text /proc/swaps | grep -q "^$SWAPFILE "; then
        say "unchanged: $SWAPFILE is in use"
    else
        if [ "$(free_mb /var)" -lt $((size_mb + 500)) ]; then
            die "/var has less than $((size_mb + 500)) MB free" "a smaller --swap, or --swap 0; du -xh /var | sort -h | tail"
        fi
        # one that is there and not in use was left by an interrupted run
        drop "a swap file that was never finished" "$SWAPFILE"
        # not sparse, which swapon refuses: where the file system cannot reserve space, zeros are written
        run "reserve $size for swap" fallocate -l "${size_mb}MiB" "$R$SWAPFILE" ||
            run "write $size of zeros for swap" dd if=/dev/zero "of=$R$SWAPFILE" bs=1M "count=$size_mb" status=none ||
            die "$SWAPFILE cannot be written" "df -h /var; or --swap 0"
        run "only root may read what was swapped out" chmod 600 "$R$SWAPFILE"
        run "format it" mkswap "$R$SWAPFILE" || die "mkswap refuses $SWAPFILE" "--swap 0, or make swap by hand"
        run "use it" swapon "$R$SWAPFILE" ||
            die "swapon refuses $SWAPFILE" "--swap 0 (a container has its host's swap)"
        [ "$DRY" = yes ] || note swap "$SWAPFILE"
    fi
    if text /etc/fstab | grep -q "^$SWAPFILE "; then
        say "unchanged: /etc/fstab"
    else
        { text /etc/fstab && printf '%s none swap sw,nofail 0 0\n' "$SWAPFILE"; } |
            put "use it after every boot" /etc/fstab 0644 root:root
    fi
}
