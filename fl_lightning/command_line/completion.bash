# Completes command lines of fl-lightning @version@.
if [[ -n ${ZSH_VERSION-} ]]; then autoload -Uz compinit bashcompinit; (( $+functions[compdef] )) || compinit; bashcompinit; fi
_fl_lightning() {
  local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]} words=""
  if (( COMP_CWORD == 1 )); then
    words="@subcommands@"
  elif [[ $word == -* ]]; then
    words="@options@"
  else
    case $option in
@values@
      --config) words="@configs@ $(compgen -f -X '!*.yaml' -- "$word")" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _fl_lightning fl-lightning
