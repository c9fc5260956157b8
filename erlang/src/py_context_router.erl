%% @doc Chooses the context of a process: the one that it was bound to, or one by its number.
-module(py_context_router).
-export([get_context/0, get_context/1, bind_context/1, unbind_context/0, contexts/0, num_contexts/0]).

-define(BOUND, '$py_context').

%% @doc Returns the context of the calling process.
get_context() ->
    case get(?BOUND) of
        undefined -> get_context(py_nif:nif_number(self()));
        Context -> Context
    end.

%% @doc Returns the context with a number, modulo the number of contexts.
get_context(Number) when is_integer(Number) ->
    case py_contexts:all() of
        {} -> error(no_contexts);
        All -> element(1 + Number rem tuple_size(All), All)
    end.

bind_context(Context) ->
    put(?BOUND, Context),
    ok.

unbind_context() ->
    erase(?BOUND),
    ok.

contexts() -> tuple_to_list(py_contexts:all()).
num_contexts() -> tuple_size(py_contexts:all()).
