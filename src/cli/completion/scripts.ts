/**
 * The completion scripts. Each has the table of words, and the same function in the language of its shell. The function goes through the words
 * of the line, which lead to a command such as `target create`, and offers what may follow. It evaluates nothing that a person has typed.
 */

/** A word that may follow the commands `after`. */
export interface Row {
  readonly word: string;
  /** What follows the word: `FILE`, `DIR`, `one|other`, a different placeholder, or `-` for nothing. */
  readonly value: string;
  /** The commands in front of the word. Empty: the word follows `portcullis`. */
  readonly after: readonly string[];
  readonly help: string;
}

const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;
const tableOf = (rows: readonly Row[], withHelp: boolean, end = ''): string =>
  rows
    .map(({ word, value, after, help }) =>
      quoted([word, value, `,${after.join(',')},`, ...(withHelp ? [help] : [])].join('\t')).concat(end, '\n'),
    )
    .join('');

/** Works in bash 3.2, the version of macOS, which has no `compopt`. */
const bash = (rows: readonly Row[]): string => `# bash completion for portcullis
_portcullis_rows=(
${tableOf(rows, false)})

# Sets value to that of the word $1 behind the command $2.
_portcullis_find() {
  local row
  for row in "\${_portcullis_rows[@]}"; do
    [[ $row == "$1"$'\\t'*",$2,"* ]] || continue
    row=\${row#*$'\\t'}
    value=\${row%%$'\\t'*}
    return 0
  done
  return 1
}

_portcullis() {
  local at='' expects='-' arguments=0 IFS=$'\\n' current="\${COMP_WORDS[COMP_CWORD]}" i row value word
  local kind=()
  COMPREPLY=()
  for ((i = 1; i <= COMP_CWORD; i++)); do
    word=\${COMP_WORDS[i]}
    if [[ $expects != - ]]; then
      ((i < COMP_CWORD)) && expects='-'
      continue
    fi
    # Without a command, options belong to list.
    if [[ $word == -* && -n $at ]] && _portcullis_find list "$at"; then at="$at list"; fi
    ((i < COMP_CWORD)) || break
    [[ $word == -- ]] && return
    if _portcullis_find "$word" "$at"; then
      if [[ $word == -* ]]; then expects=$value; else at="\${at:+$at }$word"; fi
    elif [[ $word != -* ]]; then
      arguments=$((arguments + 1))
    fi
    [[ $at == help ]] && at=''
  done
  if [[ $expects == - && $current != -* ]]; then
    ((arguments == 0)) || return
    if _portcullis_find '<>' "$at"; then expects=$value; fi
  fi
  case $expects in
    FILE) kind=(-f) ;;
    DIR) kind=(-d) ;;
    *'|'*) kind=(-W "\${expects//|/$'\\n'}") ;;
    -)
      for row in "\${_portcullis_rows[@]}"; do
        [[ $row == "$current"*$'\\t'*",$at,"* ]] || continue
        word=\${row%%$'\\t'*}
        [[ $word == '<>' || (-z $current && $word == -*) ]] || COMPREPLY+=("$word")
      done
      ;;
  esac
  [[ -n \${kind[0]} ]] || return
  [[ $expects == *'|'* ]] || compopt -o filenames 2>/dev/null
  while read -r word; do COMPREPLY+=("$word"); done < <(compgen "\${kind[@]}" -- "$current")
}

complete -F _portcullis portcullis
`;

const zsh = (rows: readonly Row[]): string => `#compdef portcullis
typeset -ga _portcullis_rows=(
${tableOf(rows, true)})

# Sets value to that of the word $1 behind the command $2.
_portcullis_find() {
  local -a found=("\${(@M)_portcullis_rows:#$1$'\\t'*,$2,*$'\\t'*}")
  [[ -n $found[1] ]] && value=\${\${found[1]#*$'\\t'}%%$'\\t'*}
}

_portcullis() {
  local at= expects=- row value word
  local -a columns commands options
  integer arguments=0 i
  for ((i = 2; i <= CURRENT; i++)); do
    word=$words[i]
    if [[ $expects != - ]]; then
      ((i < CURRENT)) && expects=-
      continue
    fi
    # Without a command, options belong to list.
    if [[ $word == -* && -n $at ]] && _portcullis_find list $at; then at="$at list"; fi
    ((i < CURRENT)) || break
    [[ $word == -- ]] && return 1
    if _portcullis_find "$word" "$at"; then
      if [[ $word == -* ]]; then expects=$value; else at="\${at:+$at }$word"; fi
    elif [[ $word != -* ]]; then
      ((arguments += 1))
    fi
    [[ $at == help ]] && at=
  done
  if [[ $expects == - && $words[CURRENT] != -* ]]; then
    ((arguments == 0)) || return 1
    if _portcullis_find '<>' "$at"; then expects=$value; fi
  fi
  case $expects in
    FILE) _files; return ;;
    DIR) _files -/; return ;;
    *'|'*) compadd -- \${(s:|:)expects}; return ;;
    -) ;;
    *) return 1 ;;
  esac
  for row in "\${(@M)_portcullis_rows:#*$'\\t'*,$at,*$'\\t'*}"; do
    columns=("\${(@ps:\\t:)row}")
    case $columns[1] in
      '<>') ;;
      -*) options+=("$columns[1]:$columns[4]") ;;
      *) commands+=("$columns[1]:$columns[4]") ;;
    esac
  done
  if [[ $words[CURRENT] == -* ]]; then _describe -o option options; else _describe command commands; fi
}

# The file of a folder of fpath is itself the function, and completes at its first call.
if [[ $funcstack[1] == _portcullis ]]; then _portcullis "$@"; else compdef _portcullis portcullis; fi
`;

const fish = (rows: readonly Row[]): string => `# fish completion for portcullis
set -g __portcullis_rows \\
${tableOf(rows, true, ' \\')}

# Prints the value of the word $argv[1] behind the command $argv[2].
function __portcullis_find
    set -l word (string escape --style=regex -- $argv[1])
    string replace -rf -- "^$word\\t([^\\t]*)\\t[^\\t]*,$argv[2],.*" '$1' $__portcullis_rows
end

function __portcullis
    set -l words (commandline -opc) "$(commandline -ct)"
    set -l last (count $words)
    set -l at ''
    set -l expects -
    set -l arguments 0
    for i in (seq 2 $last)
        set -l word $words[$i]
        if test $expects != -
            test $i = $last; or set expects -
            continue
        end
        # Without a command, options belong to list.
        if string match -q -- '-*' "$word"; and test -n "$at"; and __portcullis_find list $at >/dev/null
            set at "$at list"
        end
        test $i = $last; and break
        test "$word" = --; and return
        if set -l value (__portcullis_find "$word" "$at")
            if string match -q -- '-*' "$word"
                set expects $value
            else
                set at (string trim "$at $word")
            end
        else if not string match -q -- '-*' "$word"
            set arguments (math $arguments + 1)
        end
        test "$at" = help; and set at ''
    end
    set -l current $words[-1]
    set -l form '[^-<][^\\t]*'
    if string match -q -- '-*' $current
        set form '-[^\\t]*'
    else if test $expects = -
        test $arguments = 0; or return
        set -l value (__portcullis_find '<>' "$at"); and set expects $value
    end
    switch $expects
        case FILE
            __fish_complete_path $current
        case DIR
            __fish_complete_directories $current ''
        case '*|*'
            string split '|' $expects
        case -
            string replace -rf -- "^($form)\\t[^\\t]*\\t[^\\t]*,$at,[^\\t]*\\t(.*)" '$1\\t$2' $__portcullis_rows
    end
end
complete -c portcullis -f -a '(__portcullis)'
`;

/** The functions that make the script of each shell. */
export const SCRIPTS: Readonly<Record<string, (rows: readonly Row[]) => string>> = { bash, zsh, fish };
