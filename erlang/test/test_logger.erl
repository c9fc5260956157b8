%% A handler of Erlang's logger that sends what Python logs to a test.
-module(test_logger).
-export([log/2]).

log(#{level := Level, msg := {_, [Text]}, meta := #{py_logger := Name}}, #{config := Pid}) -> Pid ! {logged, Level, Name, Text};
log(_, _) -> ok.
