// A guest in C with effects: it adds 2 to the counter `count` and enqueues a task with its own fields for the
// queue in the field `to`.
//
// It returns the fence, in one byte. A task that may not be enqueued is rejected with the host's reason.

#include "project.h"

#include <string.h>

bool exports_tqhost_handler_handler_handle(exports_tqhost_handler_handler_task_t *task,
                                           project_option_list_u8_t *result,
                                           exports_tqhost_handler_handler_failure_t *failure) {
  failure->tag = TQHOST_HANDLER_TYPES_FAILURE_REJECT;
  if (task->fields.len == 0 || task->fields.ptr[0].name.len != strlen("to")) {
    project_string_dup(&failure->val.reject, "the first field is not `to`");
    return false;
  }
  project_string_t key;
  project_string_set(&key, "count");
  int64_t count;
  tqhost_handler_state_error_t unreadable;
  if (!tqhost_handler_state_increment(&key, 2, &count, &unreadable)) {
    failure->val.reject = unreadable.val.unavailable;
    return false;
  }
  project_list_u8_t *to = &task->fields.ptr[0].value;
  tqhost_handler_outbox_new_task_t next = {
    .queue = {to->ptr, to->len},
    .fields = {task->fields.ptr, task->fields.len},
  };
  project_string_t id;
  tqhost_handler_outbox_error_t refused;
  if (!tqhost_handler_outbox_enqueue(&next, &id, &refused)) {
    failure->val.reject = refused.val.not_permitted;
    return false;
  }
  project_string_t digit;
  char fence = (char)('0' + tqhost_extensions_delivery_fence());
  project_string_dup_n(&digit, &fence, 1);
  result->is_some = true;
  result->val.ptr = digit.ptr;
  result->val.len = digit.len;
  return true;
}
