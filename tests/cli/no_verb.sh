mhla
