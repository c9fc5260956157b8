%% Conversion of values in both directions.
-module(values_SUITE).
-include_lib("stdlib/include/assert.hrl").
-export([all/0, init_per_suite/1, end_per_suite/1]).
-export([to_python/1, from_python/1, random_terms_come_back/1, random_objects_agree_with_repr/1, integers/1, too_deep/1, not_convertible/1,
         pids_and_references/1, atoms_are_bounded/1, large_arguments/1, dict_changed_during_conversion/1]).

all() ->
    [to_python, from_python, random_terms_come_back, random_objects_agree_with_repr, integers, too_deep, not_convertible,
     pids_and_references, atoms_are_bounded, large_arguments, dict_changed_during_conversion].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(erlang_python),
    Config.

end_per_suite(_) ->
    application:stop(erlang_python).

repr(Term) ->
    {ok, Text} = py:call(builtins, repr, [Term]),
    Text.

to_python(_) ->
    Cases = [{true, <<"True">>}, {false, <<"False">>}, {none, <<"None">>}, {nil, <<"None">>}, {undefined, <<"None">>},
             {hello, <<"'hello'">>}, {'Grüße', <<"'Grüße'"/utf8>>}, {'日本', <<"'日本'"/utf8>>},
             {<<"text">>, <<"'text'">>}, {<<255, 0>>, <<"b'\\xff\\x00'">>}, {{bytes, <<"raw">>}, <<"b'raw'">>},
             {<<>>, <<"''">>}, {"abc", <<"[97, 98, 99]">>}, {[], <<"[]">>}, {{}, <<"()">>}, {{1, a}, <<"(1, 'a')">>},
             {1.5, <<"1.5">>}, {-7, <<"-7">>}, {#{a => [1], <<"b">> => #{}}, <<"{'a': [1], 'b': {}}">>}],
    [?assertEqual({Term, Expected}, {Term, repr(Term)}) || {Term, Expected} <- Cases].

from_python(_) ->
    Cases = [{<<"None">>, none}, {<<"True">>, true}, {<<"'text'">>, <<"text">>}, {<<"b'\\xff'">>, <<255>>},
             {<<"bytearray(b'ab')">>, <<"ab">>}, {<<"memoryview(b'abc')[::2]">>, <<"ac">>}, {<<"float('nan')">>, nan},
             {<<"float('inf')">>, infinity}, {<<"-float('inf')">>, neg_infinity}, {<<"{1, 2} - {2}">>, [1]},
             {<<"(1, [2.0], {'k': None})">>, {1, [2.0], #{<<"k">> => none}}}, {<<"{}">>, #{}}, {<<"()">>, {}},
             {<<"{'a': 1, b'a': 2}">>, #{<<"a">> => 2}}, {<<"__import__('erlang').atom('ok')">>, ok},
             {<<"__import__('erlang').Atom('日本')"/utf8>>, '日本'},
             {<<"__import__('decimal').Decimal('1.50')">>, <<"1.50">>},
             {<<"'\\ud800'">>, <<"?">>}, {<<"__import__('enum').IntEnum('E', 'A B').B">>, 2},
             {<<"__import__('collections').OrderedDict(a=1)">>, #{<<"a">> => 1}}],
    [begin
         {ok, Value} = py:eval(Code),
         case Code of
             <<"'\\ud800'">> -> ?assert(is_binary(Value));
             _ -> ?assertEqual({Code, Expected}, {Code, Value})
         end
     end || {Code, Expected} <- Cases].

%% Terms that Python has a type for come back as they were.
random_terms_come_back(_) ->
    rand:seed(exsss, {22, 7, 1}),
    Identity = fun(Term) -> {ok, Back} = py:call(erlang, '_identity', [Term]), Back end,
    [begin
         Term = term(5),
         ?assertEqual(Term, Identity(Term))
     end || _ <- lists:seq(1, 1500)].

term(Depth) ->
    case rand:uniform(if Depth =< 0 -> 7; true -> 10 end) of
        1 -> rand:uniform(1 bsl 20) - (1 bsl 19);
        2 -> (rand:uniform(1 bsl 60) bsl rand:uniform(200)) * (rand:uniform(2) * 2 - 3);
        3 -> (rand:uniform() - 0.5) * math:pow(10, rand:uniform(600) - 300);
        4 -> lists:nth(rand:uniform(3), [true, false, none]);
        5 -> unicode:characters_to_binary([lists:nth(rand:uniform(6), [$a, $ä, $日, 128512, 0, $\n]) || _ <- lists:seq(1, rand:uniform(9))]);
        6 -> <<255, (rand:bytes(rand:uniform(40)))/binary>>;
        7 -> lists:nth(rand:uniform(3), [<<>>, [], {}]);
        8 -> [term(Depth - 1) || _ <- lists:seq(1, rand:uniform(5))];
        %% A pair whose first item is the atom `bytes' cannot occur here.
        9 -> list_to_tuple([term(Depth - 1) || _ <- lists:seq(1, rand:uniform(5))]);
        10 -> maps:from_list([{key(), term(Depth - 1)} || _ <- lists:seq(1, rand:uniform(40))])
    end.

%% Python has one key for 1, 1.0 and True.
key() ->
    case rand:uniform(2) of
        1 -> rand:uniform(1 bsl 70) + 1;
        2 -> integer_to_binary(rand:uniform(1000))
    end.

%% Objects that Python generates, compared with what Python says about what came back.
random_objects_agree_with_repr(_) ->
    ok = py:exec(<<"
import random
rng = random.Random(7)
def thing(depth=4):
    kind = rng.randrange(6 if depth == 0 else 9)
    if kind == 0: return rng.randrange(-10**6, 10**6)
    if kind == 1: return rng.randrange(-10**40, 10**40)
    if kind == 2: return rng.uniform(-1e9, 1e9)
    if kind == 3: return ''.join(rng.choice('aä日\\U0001f600') for _ in range(rng.randrange(8)))
    if kind == 4: return rng.choice([None, True, False])
    if kind == 5: return bytes([255, *(rng.randrange(256) for _ in range(rng.randrange(20)))])
    if kind == 6: return [thing(depth - 1) for _ in range(rng.randrange(5))]
    if kind == 7: return tuple(thing(depth - 1) for _ in range(rng.randrange(5)))
    return {str(rng.randrange(100)): thing(depth - 1) for _ in range(rng.randrange(9))}
things = {}
def make(n):
    things[n] = thing()
    return things[n]
def same(n, back):
    return things.pop(n) == back
"/utf8>>),
    [begin
         {ok, Value} = py:call('__main__', make, [N]),
         ?assertEqual({N, {ok, true}}, {N, py:call('__main__', same, [N, Value])})
     end || N <- lists:seq(1, 1000)].

integers(_) ->
    Edges = [Sign * ((1 bsl Bits) + Offset) || Bits <- [0, 7, 31, 32, 59, 60, 62, 63, 64, 65, 127, 2048, 8 * 300], Offset <- [-1, 0, 1], Sign <- [1, -1]],
    [?assertEqual({ok, N}, py:call(erlang, '_identity', [N])) || N <- Edges],
    [?assertEqual(integer_to_binary(N), repr(N)) || N <- Edges].

too_deep(_) ->
    Deep = lists:foldl(fun(_, Inner) -> [Inner] end, [], lists:seq(1, 5000)),
    {error, {'ValueError', _}} = py:call(builtins, len, [Deep]),
    ok = py:exec(<<"cycle = []\ncycle.append(cycle)">>),
    {error, {'ValueError', _}} = py:eval(<<"cycle">>),
    {ok, 1} = py:eval(<<"1">>).

not_convertible(_) ->
    {error, {'TypeError', _}} = py:call(builtins, id, [fun() -> ok end]),
    {error, {'TypeError', _}} = py:call(builtins, id, [[1 | 2]]),
    {error, {'TypeError', _}} = py:call(builtins, id, [<<1:3>>]),
    {error, {'TypeError', _}} = py:call(builtins, id, [hd(erlang:ports())]),
    {error, {'ZeroDivisionError', "division by zero"}} = py:eval(<<"1/0">>),
    {error, {'ValueError', Text}} = py:eval(<<"(_ for _ in ()).throw(ValueError('\\ud800 grün'))"/utf8>>),
    ?assert(lists:suffix(" grün", Text)).

pids_and_references(_) ->
    Ref = make_ref(),
    {ok, {Self, Ref}} = py:call(erlang, '_identity', [{self(), Ref}]),
    ?assertEqual(self(), Self),
    {ok, true} = py:eval(<<"a == b and hash(a) == hash(b) and a != c">>, #{a => self(), b => self(), c => whereis(py_host)}),
    {ok, true} = py:eval(<<"__import__('erlang').send(pid, ('hello', ref))">>, #{pid => self(), ref => Ref}),
    receive {<<"hello">>, Ref} -> ok after 60000 -> error(no_message) end,
    {ok, Pid} = py:eval(<<"__import__('erlang').whereis('py_host')">>),
    ?assertEqual(whereis(py_host), Pid),
    {ok, none} = py:eval(<<"__import__('erlang').whereis('nobody_has_this_name')">>).

%% Atoms are never freed, so Python may create a limited number.
atoms_are_bounded(_) ->
    {_, _, Made} = py_nif:nif_counts(),
    Before = erlang:system_info(atom_count),
    {ok, Atoms} = py:eval(<<"[__import__('erlang').atom('minted_%d' % n) for n in range(12000)]">>),
    ?assertEqual(12000, length(Atoms)),
    {_, _, Now} = py_nif:nif_counts(),
    ?assert(Now =< 10000),
    ?assert(erlang:system_info(atom_count) - Before =< 10000 - Made + 100),
    ?assert(is_atom(hd(Atoms))),
    ?assert(is_binary(lists:last(Atoms))),
    %% Those that exist can still be used, and classes of exceptions are binaries.
    {ok, ok} = py:eval(<<"__import__('erlang').atom('ok')">>),
    {error, {<<"NeverSeenBefore">>, "x"}} = py:exec(<<"class NeverSeenBefore(Exception): pass\nraise NeverSeenBefore('x')">>).

%% A scheduler does not copy them.
large_arguments(_) ->
    List = lists:seq(1, 100000),
    {ok, 5000050000} = py:call(builtins, sum, [List]),
    Ref = py_event_loop:create_task(builtins, len, [maps:from_list([{N, N} || N <- lists:seq(1, 5000)])]),
    {ok, 5000} = py_event_loop:await(Ref, 60000),
    Binary = binary:copy(<<"x">>, 1 bsl 20),
    {ok, Binary} = py:call(erlang, '_identity', [Binary]).

dict_changed_during_conversion(_) ->
    ok = py:exec(<<"
class Odd:
    def __str__(self):
        victim.clear()
        return 'odd'
victim = {n: Odd() for n in range(100)}
">>),
    {ok, Map} = py:eval(<<"victim">>),
    ?assertEqual(100, map_size(Map)),
    {ok, #{}} = py:eval(<<"victim">>).
