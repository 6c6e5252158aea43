// A model file: mapped or read, never written.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ds {

struct byte_range {
    uint64_t first;
    uint64_t last; // exclusive
};

class model_file {
public:
    explicit model_file(const char * path);
    ~model_file();

    model_file(const model_file &) = delete;
    model_file & operator=(const model_file &) = delete;

    const std::string & path() const { return name; }
    uint64_t            size() const { return n_bytes; }

    // maps the whole file read-only, and asks for it to be read ahead
    void            map();
    const uint8_t * data() const { return base; } // nullptr until mapped

    // gives back the pages of the mapping that lie in none of the ranges
    void keep_only(std::vector<byte_range> ranges);

    void read(void * dst, uint64_t offset, uint64_t n) const;

private:
    void unmap(uint64_t first, uint64_t last);

    std::string             name;
    int                     fd      = -1;
    uint64_t                n_bytes = 0;
    uint8_t *               base    = nullptr;
    std::vector<byte_range> mapped; // whole pages that are still mapped, ascending
};

} // namespace ds
