# Words, commands, files: everything that changes the machine goes through `run`, `put` or `drop`, which --dry-run stops.
# shellcheck shell=bash

#: whether anything was changed in this run, and whether anything was that the running service has to take up
CHANGED=no
RESTART=no
STEP='the beginning'

say() { printf '   %s\n' "$*"; }
warn() { printf 'install.sh: warning: %s\n' "$*" >&2; }

usage_error() {
    printf 'install.sh: %s (see --help)\n' "$*" >&2
    exit 2
}

#: die WHAT DO: what went wrong, and what to do. Running again is always right.
die() {
    printf 'install.sh: %s failed: %s\n' "$STEP" "$1" >&2
    [ $# -lt 2 ] || printf 'install.sh: to do: %s\n' "$2" >&2
    printf 'install.sh: then run the same command again: it goes on where this run stopped\n' >&2
    exit 1
}

#: What no `die` caught: a command that this script did not expect to fail.
on_error() {
    local status=$1 line=$2 command=$3
    [ "$BASH_SUBSHELL" = 0 ] || exit "$status" # who asked decides
    trap - ERR
    printf 'install.sh: %s failed (status %s, %s): %s\n' "$STEP" "$status" "$line" "$command" >&2
    printf 'install.sh: run the same command again; if it stops here again, report these lines\n' >&2
    exit 1
}

on_signal() {
    trap - ERR INT TERM HUP
    printf '\ninstall.sh: interrupted in: %s; run the same command again: it goes on from there\n' "$STEP" >&2
    exit "$1"
}

step() {
    STEP=$1
    printf '\n== %s\n' "$STEP"
}

begin() {
    set -E
    # shellcheck disable=SC2154
    trap 'on_error $? "${BASH_SOURCE[0]##*/}:$LINENO" "$BASH_COMMAND"' ERR
    trap 'on_signal 130' INT
    trap 'on_signal 143' TERM
    trap 'on_signal 129' HUP
    cd / # commands run as another user, who may not see this folder
    if [ "$DRY" = yes ]; then
        say "dry run: nothing is changed"
        return 0
    fi
    [ "$(id -u)" = 0 ] || die "this needs root" "sudo $0 …, or look at what it would do: $0 --dry-run"
    mkdir -p "$R/run/lock" || die "$R/run/lock cannot be made" "is the root file system read-only? sudo mount -o remount,rw /"
    exec 9>"$R/run/lock/edgegs-install" || die "no lock in $R/run/lock" "look at that folder"
    if has flock; then
        flock -n 9 || die "another install.sh is running" "wait for it, or end it"
    fi
}

has() { command -v "$1" >/dev/null 2>&1; }

#: quoted WORD…: a command as one could type it
quoted() {
    local word words=''
    for word in "$@"; do
        if [[ $word =~ ^[A-Za-z0-9_./:=@%+,^-]+$ ]]; then words+=" $word"; else words+=" '${word//\'/\'\\\'\'}'"; fi
    done
    printf '%s\n' "${words# }"
}

#: run WHY COMMAND…: say why, show the command, and (but for a dry run) do it
run() {
    local why=$1
    shift
    say "$why"
    printf '     $ %s\n' "$(quoted "$@")"
    [ "$DRY" = no ] || return 0
    CHANGED=yes
    "$@"
}

#: ask QUESTION: yes, no; without a terminal, with --yes and in a dry run: no
ask() {
    local answer
    [ "$YES" = no ] && [ "$DRY" = no ] && [ -t 0 ] || return 1
    read -r -p "   $1 [y/N] " answer || return 1
    [[ $answer =~ ^[yYjJ] ]]
}

#: put WHY FILE MODE OWNER < CONTENT: write a file unless it has that content already; never leaves half a file.
#: Status 0 always; sets PUT to yes when it was (or would be) written.
put() {
    local why=$1 path=$R$2 mode=$3 owner=$4 content
    IFS= read -r -d '' content || true # all of it, line ends included
    PUT=no
    if [ ! -L "$path" ] && same "$content" "$path"; then
        say "unchanged: $2"
        return 0
    fi
    PUT=yes
    say "$why: $2"
    [ "$DRY" = no ] || return 0
    CHANGED=yes
    mkdir -p -- "$(dirname -- "$path")"
    printf '%s' "$content" >"$path.edgegs-new" || die "$path cannot be written" "df -h $(dirname -- "$path")"
    chown "$owner" "$path.edgegs-new"
    chmod "$mode" "$path.edgegs-new"
    mv -f -- "$path.edgegs-new" "$path"
}

#: same CONTENT FILE
same() {
    local here
    [ -f "$2" ] || return 1
    IFS= read -r -d '' here <"$2" || true
    [ "$1" = "$here" ]
}

#: drop WHY PATH: remove a file that is there
drop() {
    [ -e "$R$2" ] || [ -L "$R$2" ] || return 0
    run "$1" rm -rf -- "$R$2"
}

#: folder PATH MODE OWNER: whole, with its mode and owner, or not at all
folder() {
    local path=$R$1
    if [ -d "$path" ]; then
        say "unchanged: $1"
        return 0
    fi
    say "make the folder $1 ($3, $2)"
    [ "$DRY" = no ] || return 0
    CHANGED=yes
    mkdir -p -- "$path.edgegs-new" || die "$1 cannot be made" "is the file system full or read-only? df -h $(dirname -- "$1")"
    chown "$3" "$path.edgegs-new"
    chmod "$2" "$path.edgegs-new"
    mv -fT -- "$path.edgegs-new" "$path"
}

finish() {
    printf '\n'
    if [ "$DRY" = yes ]; then
        say "dry run: nothing was changed"
    elif [ "$CHANGED" = no ]; then
        say "everything was in place: nothing was changed"
    else
        say "done: configuration /etc/edgegs/edgegs.yaml; then: sudo systemctl restart edgegs; journalctl -u edgegs"
    fi
}
