;; Calls itself without end and uses nothing of its memory, so that the runtime's stack ends. Code from a
;; compiler reaches the end of the stack in its memory first. The tests add the component type of
;; wit/handler.wit.
(module
    (memory (export "memory") 1)
    ;; The host writes arguments here, one piece after the other.
    (global $next (mut i32) (i32.const 4096))
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
        (global.set $next (i32.add (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8))
            (local.get 3)))
        (i32.sub (global.get $next) (local.get 3)))
    (func $deeper (param i32) (result i32)
        (i32.add (call $deeper (i32.add (local.get 0) (i32.const 1))) (local.get 0)))
    (func (export "tqhost:handler/handler@0.1.0#handle")
        (param $id i32) (param $id-len i32) (param $queue i32) (param $queue-len i32)
        (param $fields i32) (param $fields-len i32) (param $attempt i32) (param $max-attempts i32)
        (param $enqueued i64) (param $deadline i64) (param $traced i32) (param $trace i32)
            (param $trace-len i32)
        (result i32)
        (call $deeper (i32.const 0))))
