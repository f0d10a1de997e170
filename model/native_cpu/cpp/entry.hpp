// The functions that library.py calls: sterna_<operation>, given the address of its arguments.
#pragma once

#define STERNA_EXPORT extern "C" __attribute__((visibility("default")))

#define STERNA_ENTRY(operation, Arguments)                              \
    STERNA_EXPORT void sterna_##operation(const sterna::Arguments* a) { \
        sterna::operation(*a);                                          \
    }
