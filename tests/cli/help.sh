mhla --help && mhla -h >/dev/null && mhla info --help && mhla check --help && mhla bench --help && mhla demo --help && mhla convert --help && mhla plot --help
