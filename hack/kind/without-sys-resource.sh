#!/bin/sh
# An OCI runtime for machines whose processes cannot have CAP_SYS_RESOURCE: takes that one
# capability from what the engine asks for ("create" names a bundle, "exec" a process file),
# and becomes runc.
last=
for arg; do
	case "$last" in
	--bundle | -b) file="$arg/config.json" ;;
	--process | -p) file="$arg" ;;
	*) file= ;;
	esac
	if [ -n "$file" ] && [ -f "$file" ]; then
		sed -i -e 's/"CAP_SYS_RESOURCE",//g' -e 's/,"CAP_SYS_RESOURCE"//g' "$file"
	fi
	last="$arg"
done
exec @RUNC@ "$@"
