# Doxygen's view of a header: our plain comments as the ones it reads. The first one is of the file, rulers
# ("/* ---- name ---- */") are of nobody, one that follows code on its line is of what stands before it.
NR == 1 && /^\/\* / { sub(/^\/\* /, "/** @file\n * "); print; next }
/^[ \t]*\/\* ----/ { print ""; next }
/^[ \t]*\/\* / { sub(/\/\* /, "/** "); print; next }
/[;,{][ \t]*\/\* / { sub(/\/\* /, "/**< "); print; next }
/[A-Z_0-9][ \t]+\/\* / && !/^[ \t]*\*/ && !/#/ { sub(/\/\* /, "/**< "); print; next }
/^typedef (struct|enum|union) [a-z_0-9]+ \{/ { sub(/ [a-z_0-9]+ \{/, " {"); print; next } # one name, not two
{ print }
