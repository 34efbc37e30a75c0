# Writes ${OUT}, a C file with the bytes of ${IN} as the text ${NAME}: styles and scripts of pages are files of their own.
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}") # 16 bytes a line
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "extern const char ${NAME}[];\nconst char ${NAME}[] = {\n${bytes}0};\n")
