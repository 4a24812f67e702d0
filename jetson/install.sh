#!/usr/bin/env bash
# Installs edgegs as a service: Jetson Nano (JetPack 4.6), Xavier and Orin (JetPack 5 and 6), Ubuntu and Debian.
#
#   sudo jetson/install.sh                what a first run needs, for this machine
#   jetson/install.sh --dry-run           what that would do, and why; changes nothing, needs no root
#   sudo jetson/install.sh --uninstall    takes it away again
#
# Every step looks at what is there and does what is missing, so that a second run changes nothing, and a run after an
# interrupted one goes on. docs/install.md has the whole story. The steps stand at the end of this file, in their order.
# bash 4.4 (Ubuntu 18.04) is enough.
#
# Exit status: 0 in place; 1 a step failed (run it again); 2 wrong options; 3 in place, but the doctor found a problem.
set -euo pipefail
umask 022

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
SOURCE=$(dirname -- "$HERE")
readonly HERE SOURCE

# Files are looked for, and put, below this folder; commands are those on PATH. Tests set it.
R=${EDGEGS_INSTALL_ROOT:-}

usage() {
    cat <<'END'
usage: jetson/install.sh [options]

  --dry-run             print each command and why; change nothing (works without root)
  --yes                 ask nothing; what would be asked is left out
  --uninstall           remove the service, the program and its kernels; keep configuration, scenes and runs
  --purge               with --uninstall: remove those, too, and the user edgegs

  --config FILE         configuration for a first installation (default: jetson/edgegs.yaml, a room on a web page)
  --prefix DIR          where the program goes (default: /opt/edgegs)
  --package FILE.whl    install this wheel instead of the checkout that this script lies in
  --offline-wheels DIR  take Python packages from DIR only (filled by `pip download`)
  --extras LIST         further extras of the package, such as mqtt,report
  --swap SIZE           make a swap file of SIZE (2G, 4096M); 0: do not ask
  --no-cuda             no GPU: the kernels run on the processor
  --no-gstreamer        leave GStreamer's packages out (no rtp:, rtsp:, H.264)
  --no-service          leave the unit off: it is put in place, but neither enabled nor started

  --kiosk               the service draws on the screen of the user who is logged in (display: outputs)
  --csi                 the service reads a CSI camera (camera.background: csi://0)
  --v4l2loopback        set up a virtual camera with the label "edgegs" (v4l2: outputs)
  --help
END
}

DRY=no YES=no UNINSTALL=no PURGE=no
CONFIG='' PREFIX=/opt/edgegs PACKAGE='' WHEELS='' EXTRAS='' SWAP=ask
CUDA=auto GSTREAMER=yes SERVICE=yes KIOSK=no CSI=no LOOPBACK=no

# shellcheck source=jetson/lib/say.sh
. "$HERE/lib/say.sh"
# shellcheck source=jetson/lib/detect.sh
. "$HERE/lib/detect.sh"
# shellcheck source=jetson/lib/packages.sh
. "$HERE/lib/packages.sh"
# shellcheck source=jetson/lib/python.sh
. "$HERE/lib/python.sh"
# shellcheck source=jetson/lib/kernels.sh
. "$HERE/lib/kernels.sh"
# shellcheck source=jetson/lib/system.sh
. "$HERE/lib/system.sh"
# shellcheck source=jetson/lib/loopback.sh
. "$HERE/lib/loopback.sh"
# shellcheck source=jetson/lib/uninstall.sh
. "$HERE/lib/uninstall.sh"

needs_value() { if [ $# -lt 2 ] || [ -z "$2" ]; then usage_error "$1 needs a value"; fi; }

while [ $# -gt 0 ]; do
    case $1 in
        --*=*) # --swap=4G is --swap 4G
            option=$1
            shift
            set -- "${option%%=*}" "${option#*=}" "$@"
            case $1 in
                --config | --prefix | --package | --offline-wheels | --extras | --swap) ;;
                *) usage_error "$1 takes no value" ;;
            esac
            continue
            ;;
        --dry-run) DRY=yes ;;
        --yes | -y) YES=yes ;;
        --uninstall) UNINSTALL=yes ;;
        --purge) PURGE=yes ;;
        --config) needs_value "$@"; CONFIG=$2; shift ;;
        --prefix) needs_value "$@"; PREFIX=$2; shift ;;
        --package) needs_value "$@"; PACKAGE=$2; shift ;;
        --offline-wheels) needs_value "$@"; WHEELS=$2; shift ;;
        --extras) needs_value "$@"; EXTRAS=$2; shift ;;
        --swap) needs_value "$@"; SWAP=$2; shift ;;
        --no-cuda) CUDA=no ;;
        --no-gstreamer) GSTREAMER=no ;;
        --no-service) SERVICE=no ;;
        --kiosk) KIOSK=yes ;;
        --csi) CSI=yes ;;
        --v4l2loopback) LOOPBACK=yes ;;
        --help | -h)
            usage
            exit 0
            ;;
        *) usage_error "no option $1" ;;
    esac
    shift
done

[ "$PURGE" = no ] || [ "$UNINSTALL" = yes ] || usage_error "--purge goes with --uninstall"
case $PREFIX in
    / | /usr | /usr/local | /opt | /home | /root | /var | /etc) usage_error "--prefix $PREFIX: name a folder of its own" ;;
    *[!A-Za-z0-9/._+-]*) usage_error "--prefix $PREFIX: letters, digits and / . _ + - only" ;;
    *//* | */../* | */.. | */./* | */. | */) usage_error "--prefix $PREFIX: write it plainly, without //, .. and a slash at the end" ;;
    /home/* | /root/*) usage_error "--prefix $PREFIX: the service does not see home folders (ProtectHome)" ;;
    /?*) ;;
    *) usage_error "--prefix $PREFIX: not an absolute path" ;;
esac
[[ $SWAP =~ ^(ask|0|[1-9][0-9]{0,5}[MG])$ ]] || usage_error "--swap $SWAP: expected a size such as 4G or 2048M, or 0"
[[ $EXTRAS =~ ^[a-z0-9,]*$ ]] || usage_error "--extras $EXTRAS: expected names with commas, such as mqtt,report"
[ -z "$CONFIG" ] || [ -f "$CONFIG" ] || usage_error "--config $CONFIG: no such file"
[ -z "$WHEELS" ] || [ -d "$WHEELS" ] || usage_error "--offline-wheels $WHEELS: no such folder"
[ -z "$WHEELS" ] || WHEELS=$(cd -- "$WHEELS" && pwd)
[ -z "$CONFIG" ] || CONFIG=$(realpath -- "$CONFIG")
[ -z "$PACKAGE" ] || [[ -f $PACKAGE && $PACKAGE == *.whl ]] || usage_error "--package $PACKAGE: no such wheel"
[ -z "$PACKAGE" ] || PACKAGE=$(realpath -- "$PACKAGE")

VENV=$PREFIX/venv
# What was put here, as far as it cannot be seen: root's own folder, unlike /var/lib/edgegs.
STATE=$R$PREFIX/install
readonly VENV STATE

begin
if [ "$UNINSTALL" = yes ]; then
    uninstall
    exit 0
fi

step "look at the machine"; detect; say_machine; check_machine
step "system packages"; system_packages
step "swap"; swap
step "Python environment"; environment
step "Python packages"; python_packages
step "user and folders"; user_and_folders
step "configuration"; configuration
step "kernels"; kernels
step "a scene to begin with"; first_scene
step "service files"; service_files
step "virtual camera"; virtual_camera
step "service"; service
step "doctor"; doctor
finish
