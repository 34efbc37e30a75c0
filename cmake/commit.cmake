# Writes ${OUT}, a header with the commit that is being built, "-changed" behind it where the tree is not as committed. Run at each
# build; the file is touched only when that has changed. Without git, or outside of a clone: "unknown".
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE commit RESULT_VARIABLE failed
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(failed)
    set(commit unknown)
else()
    execute_process(COMMAND git -C ${SOURCE} status --porcelain --untracked-files=no -- . ":!docs" OUTPUT_VARIABLE changed
                    ERROR_QUIET)
    if(changed)
        string(APPEND commit "-changed")
    endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define MHLA_COMMIT \"${commit}\"\n")
