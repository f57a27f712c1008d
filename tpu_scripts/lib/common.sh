# shellcheck shell=bash
# Shared parts of the TPU scripts; sourced, never run.
set -euo pipefail

TPU_SCRIPTS="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck disable=SC2034 # for the scripts that source this file
REPOSITORY="$(dirname "$TPU_SCRIPTS")"
DRY_RUN="${DRY_RUN:-0}"

die() {
  printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
  exit 2
}

# Values of env.sh (or of the file that VRH_TPU_ENV names) are defaults; flags win over them.
load_environment() {
  local file="${VRH_TPU_ENV:-$TPU_SCRIPTS/env.sh}"
  if [[ -n "${VRH_TPU_ENV:-}" && ! -e "$file" ]]; then
    die "VRH_TPU_ENV names $file, which is not there; copy $TPU_SCRIPTS/env.sh.example to it"
  fi
  # shellcheck disable=SC1090
  if [[ -e "$file" ]]; then source "$file"; fi
}

# require_var NAME FLAG: the variable must have a value by now.
require_var() {
  if [[ -z "${!1:-}" ]]; then
    die "$2 is missing; give it as a flag, or set $1 in env.sh (see env.sh.example)"
  fi
}

# require_argument FLAG COUNT: a flag that takes a value must have one ("$#" counts both).
require_argument() {
  if (($2 < 2)); then die "$1 needs a value; see --help"; fi
}

# quote WORD...: one line that a shell reads back as exactly these words.
quote() {
  local words
  words="$(printf '%q ' "$@")"
  printf '%s' "${words% }"
}

# run COMMAND...: print the command as it could be typed; run it unless DRY_RUN=1.
run() {
  printf '+ %s\n' "$(quote "$@")"
  if [[ "$DRY_RUN" != 1 ]]; then "$@"; fi
}
