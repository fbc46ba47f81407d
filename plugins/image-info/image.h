// Facts about an image, read from the first bytes of its file. They do not depend on tasks.
#ifndef IMAGE_H
#define IMAGE_H

#include <stddef.h>
#include <stdint.h>

struct image {
  const char *format; // "png", "jpeg", "gif" or "webp"
  uint32_t width;     // pixels, never 0
  uint32_t height;
};

// Reads the header of a PNG, JPEG, GIF or WebP image. The bytes may end anywhere after the header. Returns
// NULL, or the reason why the header cannot be read: a text that follows the name of the thing that was read.
const char *image_read(const uint8_t *bytes, size_t length, struct image *image);

#endif
