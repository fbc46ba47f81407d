;; Grows each of its four memories, the largest allowed number, by a page at a time and touches it, until one
;; is refused. It is written by hand, because compilers make modules with one memory. The tests add the
;; component type of wit/handler.wit.
(module
    (memory $a (export "memory") 1)
    (memory $b 0)
    (memory $c 0)
    (memory $d 0)
    ;; The host writes arguments here, one piece after the other.
    (global $next (mut i32) (i32.const 4096))
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
        (global.set $next (i32.add (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8))
            (local.get 3)))
        (i32.sub (global.get $next) (local.get 3)))
    (func (export "tqhost:handler/handler@0.1.0#handle")
        (param $id i32) (param $id-len i32) (param $queue i32) (param $queue-len i32)
        (param $fields i32) (param $fields-len i32) (param $attempt i32) (param $max-attempts i32)
        (param $enqueued i64) (param $deadline i64) (param $traced i32) (param $trace i32)
            (param $trace-len i32)
        (result i32)
        (loop $more
            (if (i32.eq (memory.grow $a (i32.const 1)) (i32.const -1)) (then unreachable))
            (i32.store $a (i32.sub (i32.mul (memory.size $a) (i32.const 65536)) (i32.const 4)) (i32.const 1))
            (if (i32.eq (memory.grow $b (i32.const 1)) (i32.const -1)) (then unreachable))
            (i32.store $b (i32.sub (i32.mul (memory.size $b) (i32.const 65536)) (i32.const 4)) (i32.const 1))
            (if (i32.eq (memory.grow $c (i32.const 1)) (i32.const -1)) (then unreachable))
            (i32.store $c (i32.sub (i32.mul (memory.size $c) (i32.const 65536)) (i32.const 4)) (i32.const 1))
            (if (i32.eq (memory.grow $d (i32.const 1)) (i32.const -1)) (then unreachable))
            (i32.store $d (i32.sub (i32.mul (memory.size $d) (i32.const 65536)) (i32.const 4)) (i32.const 1))
            (br $more))
        unreachable))
