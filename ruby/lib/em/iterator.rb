# frozen_string_literal: true

module EventMachine
  # Works through a list with a bounded number of concurrent workers. Each step says when it is done, by `iterator.next`.
  class Iterator
    # A callable that is the list returns this at its end.
    Stop = Object.new.freeze

    attr_reader :concurrency

    def initialize(list, concurrency = 1)
      raise ArgumentError, "an iterator needs at least one worker, not #{concurrency}" unless concurrency.positive?

      @list = list.respond_to?(:call) ? list : list.to_a.dup
      @concurrency = concurrency
      @started = @ended = false
      @workers = @pending = @process_delay = 0
    end

    # Changes the number of workers, also while they run.
    def concurrency=(number)
      old = @concurrency
      @concurrency = number
      spawn_workers if number > old && @started && !@ended
    end

    # Calls `foreach` with each element and an object to say `next` to, then `after`.
    def each(foreach = nil, after = nil, &block)
      raise ArgumentError, 'an iterator needs a block or a proc to call' unless (foreach ||= block)
      raise 'an iterator runs once' if @started || @ended

      @started = true
      @step = foreach
      @after = after
      spawn_workers
    end

    # Collects the values that steps pass to `iterator.return`, in the order of the list.
    def map(foreach, after)
      index = 0
      inject([], proc { |results, item, iter|
        at = index
        index += 1
        is_done = false
        on_done = proc do |value|
          raise 'this step is done already' if is_done

          is_done = true
          results[at] = value
          iter.return(results)
        end
        def on_done.return(value)
          call(value)
        end

        def on_done.next
          raise NoMethodError, 'a step of map calls return, with its value'
        end
        foreach.call(item, on_done)
      }, after)
    end

    # Passes an object from step to step, and at the end to `after`.
    def inject(object, foreach, after)
      each(proc { |item, iter|
        is_done = false
        on_done = proc do |result|
          raise 'this step is done already' if is_done

          is_done = true
          object = result
          iter.next
        end
        def on_done.return(value)
          call(value)
        end

        def on_done.next
          raise NoMethodError, 'a step of inject calls return, with the object'
        end
        foreach.call(object, item, on_done)
      }, proc { after.call(object) })
    end

    private

    def spawn_workers
      EventMachine.next_tick do
        if @workers < @concurrency && !@ended
          @workers += 1
          work
          spawn_workers if @workers < @concurrency && !@ended
        end
      end
    end

    # One worker: takes an element, and goes on when its step is done.
    def work
      if @ended || @workers > @concurrency || (item = next_item).equal?(Stop)
        @workers -= 1
        finish if @ended && @pending.zero?
        return
      end
      @pending += 1
      @step.call(item, Step.new(self))
    end

    def next_item
      item = if @list.respond_to?(:call) then @list.call
             elsif @list.empty? then Stop
             else @list.shift
             end
      @ended = true if item.equal?(Stop)
      item
    end

    def finish
      return unless @after

      after = @after
      @after = nil
      after.call
    end

    def step_done
      @pending -= 1
      if @ended && @pending.zero?
        @workers -= 1
        finish
      else
        EventMachine.next_tick { work }
      end
    end

    # What a step gets to say that it is done.
    class Step
      def initialize(iterator)
        @iterator = iterator
        @done = false
      end

      def next
        raise 'this step is done already' if @done

        @done = true
        @iterator.send(:step_done)
      end
      alias call next
    end
    private_constant :Step
  end
end
