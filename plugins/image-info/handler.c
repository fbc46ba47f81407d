// Reads the format and the size of an image.
//
// In: a task with the field `image`: the bytes of the file, or its first bytes. Out: JSON. Not here: what the
// bytes mean (`image.c`).
//
// `project.h` is made from the WIT when the handler is built. Memory of a result is not freed here: see
// `runtime/memory.c`.

#include "image.h"
#include "project.h"

#include <string.h>

// A text of limited length; what does not fit is left out.
struct text {
  char bytes[128];
  size_t length;
};

static void add(struct text *text, const char *more) {
  for (; *more != '\0' && text->length + 1 < sizeof text->bytes; more++) text->bytes[text->length++] = *more;
  text->bytes[text->length] = '\0';
}

static void add_number(struct text *text, size_t number) {
  char digits[24];
  size_t first = sizeof digits;
  digits[--first] = '\0';
  do digits[--first] = (char)('0' + number % 10);
  while ((number /= 10) != 0);
  add(text, digits + first);
}

static void log_info(const char *message) {
  project_string_t context = {0}, line;
  project_string_set(&line, message);
  wasi_logging_logging_log(WASI_LOGGING_LOGGING_LEVEL_INFO, &context, &line);
}

// Rejects the task.
static bool reject(exports_tqhost_handler_handler_failure_t *failure, const char *why) {
  failure->tag = TQHOST_HANDLER_TYPES_FAILURE_REJECT;
  project_string_dup(&failure->val.reject, why);
  return false;
}

static const project_list_u8_t *field(const exports_tqhost_handler_handler_task_t *task, const char *name) {
  for (size_t n = 0; n < task->fields.len; n++) {
    const tqhost_handler_types_field_t *field = &task->fields.ptr[n];
    bool same_length = field->name.len == strlen(name);
    if (same_length && memcmp(field->name.ptr, name, field->name.len) == 0) return &field->value;
  }
  return NULL;
}

bool exports_tqhost_handler_handler_handle(exports_tqhost_handler_handler_task_t *task,
                                           project_option_list_u8_t *result,
                                           exports_tqhost_handler_handler_failure_t *failure) {
  const project_list_u8_t *bytes = field(task, "image");
  if (bytes == NULL) return reject(failure, "field `image` is missing");

  struct image image;
  const char *problem = image_read(bytes->ptr, bytes->len, &image);
  if (problem != NULL) {
    struct text why = {0};
    add(&why, "field `image` ");
    add(&why, problem);
    return reject(failure, why.bytes);
  }

  struct text line = {0};
  add(&line, image.format);
  add(&line, ", ");
  add_number(&line, image.width);
  add(&line, " x ");
  add_number(&line, image.height);
  log_info(line.bytes);

  struct text json = {0};
  add(&json, "{\"format\":\"");
  add(&json, image.format);
  add(&json, "\",\"width\":");
  add_number(&json, image.width);
  add(&json, ",\"height\":");
  add_number(&json, image.height);
  add(&json, ",\"bytes\":");
  add_number(&json, bytes->len);
  add(&json, "}");
  project_string_t copy;
  project_string_dup_n(&copy, json.bytes, json.length);
  result->is_some = true;
  result->val.ptr = copy.ptr;
  result->val.len = copy.len;
  return true;
}
