// The functions called by library.py: sterna_<operation>, with the address of its arguments.
#pragma once

#define STERNA_EXPORT extern "C" __attribute__((visibility("default")))

#define STERNA_ENTRY(operation, Arguments)                              \
    STERNA_EXPORT void sterna_##operation(const sterna::Arguments* a) { \
        sterna::operation(*a);                                          \
    }
